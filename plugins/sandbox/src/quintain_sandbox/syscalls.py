"""The seccomp profile of containers, in the engine's format.

A profile that is given to an engine replaces its default one, so this is a whole list of what is
allowed: the system calls of Linux 6.1 (``asm/unistd.h``) less those of `bpf`, those that need a
privilege that a box never has, and rare ones. Every call that is not named, such as one of a later
kernel, is refused. Names that an architecture lacks are left out by the engine. A test compares it
with the default of the engine, call by call.
"""

from __future__ import annotations

import errno
from typing import Any

from .bpf import FAMILIES, NEW_NAMESPACES, UNKNOWN

ALLOWED = """
_llseek _newselect accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir
chmod chown chown32 clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep
clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2 dup3 epoll_create
epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd
eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate
fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr
flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync
ftruncate ftruncate64 futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake futimesat
get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups
getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid
getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr
inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents
io_pgetevents io_setup io_submit ioctl ioprio_get ioprio_set ipc kill landlock_add_rule
landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listxattr
llistxattr lremovexattr lseek lsetxattr lstat lstat64 madvise map_shadow_stack membarrier
memfd_create mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mmap2 mprotect
mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap msgctl msgget msgrcv
msgsnd msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause pidfd_open
pidfd_send_signal pipe pipe2 poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64
process_mrelease pselect6 pselect6_time64 pwrite64 pwritev pwritev2 read readahead readlink
readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr rename
renameat renameat2 restart_syscall riscv_hwprobe rmdir rseq rt_sigaction rt_sigpending
rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64
rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr
sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop
semtimedop_time64 send sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list set_thread_area
set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority setregid setresgid
setresuid setreuid setrlimit setsid setsockopt setuid setxattr shmat shmctl shmdt shmget shutdown
sigaltstack signalfd signalfd4 sigprocmask sigreturn splice stat stat64 statfs statfs64 statx
symlink symlinkat sync sync_file_range sync_file_range2 syncfs sysinfo tee tgkill time timer_create
timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64
timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill
truncate truncate64 ugetrlimit umask uname unlink unlinkat utime utimensat utimensat_time64 utimes
vfork vmsplice wait4 waitid waitpid write writev
""".split()
"""Allowed whatever their arguments."""
ARCHITECTURES = {
    "x86_64": "SCMP_ARCH_X86_64", "amd64": "SCMP_ARCH_X86_64",
    "aarch64": "SCMP_ARCH_AARCH64", "arm64": "SCMP_ARCH_AARCH64",
}  # fmt: skip
"""One table of system calls each: calls of the i386 and x32 tables kill the program."""


def seccomp_profile(machine: str) -> dict[str, Any]:
    """Return the profile for containers on *machine* (the architecture that the engine says it
    has), for ``json.dumps``.

    Arguments are compared in 64 bits where the kernel takes the lower 32, so only exact values are
    allowed; everything else is refused.
    """
    equal, greater = "SCMP_CMP_EQ", "SCMP_CMP_GT"
    rules = [_rule(ALLOWED), _rule(sorted(UNKNOWN), refused=errno.ENOSYS)]
    for family in range(max(FAMILIES) + 1):
        refused = None if family in FAMILIES else errno.EAFNOSUPPORT
        rules.append(_rule(["socket", "socketpair"], (0, equal, family), refused=refused))
    rules.append(
        _rule(["socket", "socketpair"], (0, greater, max(FAMILIES)), refused=errno.EAFNOSUPPORT)
    )
    rules += [_rule(["personality"], (0, equal, value)) for value in (0, 0xFFFFFFFF)]
    rules.append(_rule(["clone"], (0, "SCMP_CMP_MASKED_EQ", NEW_NAMESPACES, 0)))
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        # none: the engine's own
        "architectures": [ARCHITECTURES[machine]] if machine in ARCHITECTURES else [],
        "syscalls": rules,
    }


def _rule(
    names: list[str],
    *argument: tuple[int, str, int] | tuple[int, str, int, int],
    refused: int | None = None,
) -> Any:
    keys = ("index", "op", "value", "valueTwo")
    action = (
        {"action": "SCMP_ACT_ALLOW"}
        if refused is None
        else {"action": "SCMP_ACT_ERRNO", "errnoRet": refused}
    )
    return {
        "names": names,
        **action,
        "args": [dict(zip(keys, one, strict=False)) for one in argument],
    }
