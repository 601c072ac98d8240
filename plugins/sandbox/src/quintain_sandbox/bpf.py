"""The seccomp filter, as the bytes of a classic BPF program, written without libseccomp.

A filter is a list of instructions over ``struct seccomp_data`` (number, architecture, instruction
pointer, six arguments). Source: Documentation/userspace-api/seccomp_filter.rst and
include/uapi/linux/{filter,seccomp}.h of Linux.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Collection, Iterator, Mapping

from quintain.errors import InfrastructureError

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Operations: load a word at an offset; jump if equal, if greater or equal, if a bit is set; return
an action.
"""
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets in ``struct seccomp_data``; arguments are 8 bytes each, the low half first on
little-endian machines.
"""
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000

SHARED = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435,
    "pidfd_getfd": 438,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
}  # fmt: skip
"""System calls since Linux 5.1 have one number on all architectures."""
X86_64 = SHARED | {
    "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "ptrace": 101, "syslog": 103,
    "personality": 135,
    "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164,
    "mount": 165, "umount2": 166,
    "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171,
    "iopl": 172, "ioperm": 173,
    "init_module": 175, "delete_module": 176, "quotactl": 179, "lookup_dcookie": 212,
    "clock_settime": 227,
    "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256,
    "unshare": 272,
    "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303,
    "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312, "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
    "modify_ldt": 154,
    "vhangup": 153, "uselib": 134, "ustat": 136, "_sysctl": 156,
}  # fmt: skip
AARCH64 = SHARED | {
    "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "vhangup": 58,
    "quotactl": 60, "acct": 89,
    "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106,
    "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142, "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170, "adjtimex": 171, "socket": 198, "socketpair": 199, "add_key": 217,
    "request_key": 218,
    "keyctl": 219, "clone": 220, "swapon": 224, "swapoff": 225, "migrate_pages": 238,
    "move_pages": 239,
    "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
    "lookup_dcookie": 18,
}  # fmt: skip
MACHINES: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (0xC000003E, X86_64),
    "aarch64": (0xC00000B7, AARCH64),
}
"""Machine to its audit architecture and the system calls that no program needs."""

OUTSIDE = {
    "shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop", "msgget",
    "msgsnd", "msgrcv",
    "msgctl", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify",
    "mq_getsetattr", "inotify_init",
    "inotify_init1", "process_madvise", "pidfd_open", "setxattr", "lsetxattr", "fsetxattr",
    "setxattrat", "removexattr",
    "lremovexattr", "fremovexattr", "removexattrat",
}  # fmt: skip
"""Messages to other runs; watching of host folders and processes, and attributes of files that
anybody may write to, for which Landlock has no rules.
"""
METADATA = {
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime",
    "utimes", "futimesat",
    "utimensat", "file_setattr",
}  # fmt: skip
"""Landlock has no rules for them, either; they reach files of the trainer where the program runs as
the same user.
"""
OF_PROCESSES = {
    "prlimit64",
    "sched_setaffinity",
    "sched_setscheduler",
    "sched_setparam",
    "sched_setattr",
}
"""Calls that change another process; their first argument is its id, 0 for the caller itself."""
OF_CLASSES = {"setpriority": 0, "ioprio_set": 1}
"""The same for processes, groups and users; the first argument that means a process. Its id is the
second.
"""
HOST_X86_64 = {
    "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "shmdt": 67,
    "msgget": 68,
    "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "truncate": 76, "chmod": 90, "fchmod": 91,
    "chown": 92, "fchown": 93,
    "lchown": 94, "utime": 132, "setpriority": 141, "sched_setparam": 142,
    "sched_setscheduler": 144, "setxattr": 188,
    "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198,
    "fremovexattr": 199,
    "sched_setaffinity": 203, "semtimedop": 220, "utimes": 235, "mq_open": 240, "mq_unlink": 241,
    "mq_timedsend": 242,
    "mq_timedreceive": 243, "mq_notify": 244, "mq_getsetattr": 245, "ioprio_set": 251,
    "inotify_init": 253,
    "fchownat": 260, "futimesat": 261, "fchmodat": 268, "utimensat": 280, "inotify_init1": 294,
    "prlimit64": 302,
    "sched_setattr": 314, "pidfd_open": 434, "process_madvise": 440, "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466, "file_setattr": 469,
}  # fmt: skip
HOST_AARCH64 = {
    "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15,
    "fremovexattr": 16,
    "inotify_init1": 26, "ioprio_set": 30, "truncate": 45, "fchmod": 52, "fchmodat": 53,
    "fchownat": 54, "fchown": 55,
    "utimensat": 88, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122,
    "setpriority": 140,
    "mq_open": 180, "mq_unlink": 181, "mq_timedsend": 182, "mq_timedreceive": 183, "mq_notify": 184,
    "mq_getsetattr": 185, "msgget": 186, "msgctl": 187, "msgrcv": 188, "msgsnd": 189, "semget": 190,
    "semctl": 191,
    "semtimedop": 192, "semop": 193, "shmget": 194, "shmctl": 195, "shmat": 196, "shmdt": 197,
    "prlimit64": 261,
    "sched_setattr": 274, "pidfd_open": 434, "process_madvise": 440, "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466, "file_setattr": 469,
}  # fmt: skip
HOST: Mapping[str, Mapping[str, int]] = {"x86_64": HOST_X86_64, "aarch64": HOST_AARCH64}
"""Machine to the further system calls that reach the host where a program has no namespaces."""

ARGUMENT_RULES = frozenset({"ioctl", "socket", "socketpair", "clone", "clone3", "personality"})
"""Refused for some arguments only; all other calls of the tables are refused whatever their
arguments.
"""
UNKNOWN = frozenset(
    {"clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_secret"}
)
"""Refused with ENOSYS, as by a kernel that lacks them, so that libraries take the older call."""
FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6. Others are not confined by network namespaces (vsock) or reach rare
kernel code.
"""
CONNECTED = tuple(kind | flags for kind in (1, 5) for flags in (0, 0x800, 0x80000, 0x80800))
"""SOCK_STREAM and SOCK_SEQPACKET, with and without SOCK_NONBLOCK and SOCK_CLOEXEC."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX put characters into a terminal's input."""
NEW_NAMESPACES = 0x7E020080
"""All CLONE_NEW* bits: time, mount, cgroup, uts, ipc, user, pid, network."""
X32 = 0x40000000
"""Bit of the numbers of the x32 ABI, a second table of system calls on x86-64."""


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> bytes:
    return _step(RETURN, ERROR | number)


def seccomp_filter(machine: str = "", *, host: Collection[str] = ()) -> bytes:
    """Return the filter for *machine* (default: this one), as an array of ``struct sock_filter``, 8
    bytes each.

    Args:
        host: for a program without namespaces: names of `HOST` that are refused, too. It then gets
            no sockets but connected pairs, and changes the limits and priorities of its own
            processes only.

    Raises:
        InfrastructureError: there is no table of system calls for it.
    """
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise InfrastructureError(
            f"no seccomp filter for {machine!r}; sandboxes support {', '.join(MACHINES)}"
        )
    host_calls = {name: number for name, number in HOST[machine].items() if name in host}
    return b"".join(_program(*MACHINES[machine], host_calls, x32=machine == "x86_64"))


def host_rules(*, own_user: bool, abi: int) -> frozenset[str]:
    """Return the names of `HOST` to refuse to a program in Landlock of version *abi*, which has a
    user of its own or not.
    """
    return frozenset(
        OUTSIDE | OF_PROCESSES | OF_CLASSES.keys() | (set() if own_user else METADATA)
        | ({"truncate"} if abi < 3 else set())
    )  # fmt: skip


def _program(
    architecture: int, calls: Mapping[str, int], host_calls: Mapping[str, int], *, x32: bool
) -> Iterator[bytes]:
    yield _step(LOAD, ARCHITECTURE)
    yield _step(EQUAL, architecture, 1, 0)
    yield _step(RETURN, KILL)
    yield _step(LOAD, NUMBER)
    if x32:
        yield _step(AT_LEAST, X32, 0, 1)
        yield _step(RETURN, KILL)
    for name, number in sorted(calls.items(), key=lambda item: item[1]):
        if name not in ARGUMENT_RULES or name == "clone3":
            yield _step(EQUAL, number, 0, 1)
            yield _refuse(errno.ENOSYS if name in UNKNOWN else errno.EPERM)
    low = ARGUMENTS  # of the first argument
    yield from _rule(
        calls["clone"],
        [_step(LOAD, low), _step(ANY_BIT, NEW_NAMESPACES, 0, 1), _refuse(errno.EPERM)],
    )
    yield from _host_rules(calls, host_calls) if host_calls else _families(calls)
    kinds = [
        _step(EQUAL, TERMINAL_INPUT[0], 1, 0),
        _step(EQUAL, TERMINAL_INPUT[1], 0, 1),
        _refuse(errno.EPERM),
    ]
    yield from _rule(calls["ioctl"], [_step(LOAD, low + 8), *kinds])
    query = 0xFFFFFFFF
    kept = [_step(EQUAL, 0, 2, 0), _step(EQUAL, query, 1, 0), _refuse(errno.EPERM)]
    yield from _rule(calls["personality"], [_step(LOAD, low), *kept])
    yield _step(RETURN, ALLOW)


def _families(calls: Mapping[str, int]) -> Iterator[bytes]:
    for name in ("socket", "socketpair"):
        allowed = [_step(EQUAL, family, len(FAMILIES) - i, 0) for i, family in enumerate(FAMILIES)]
        yield from _rule(
            calls[name], [_step(LOAD, ARGUMENTS), *allowed, _refuse(errno.EAFNOSUPPORT)]
        )


def _host_rules(calls: Mapping[str, int], host_calls: Mapping[str, int]) -> Iterator[bytes]:
    for name, number in sorted(host_calls.items(), key=lambda item: item[1]):
        if name not in OF_PROCESSES and name not in OF_CLASSES:
            yield _step(EQUAL, number, 0, 1)
            yield _refuse(errno.EPERM)
    itself = [_step(EQUAL, 0, 1, 0), _refuse(errno.EPERM)]
    for name in sorted(OF_PROCESSES):
        yield from _rule(host_calls[name], [_step(LOAD, ARGUMENTS), *itself])
    for name, process in OF_CLASSES.items():
        of_process = [_step(LOAD, ARGUMENTS), _step(EQUAL, process, 1, 0), _refuse(errno.EPERM)]
        yield from _rule(host_calls[name], [*of_process, _step(LOAD, ARGUMENTS + 8), *itself])
    # A socket that is not connected reaches servers by their path, for which Landlock has no rule
    # before version 9. A pair of datagram sockets sends to a path, too; streams and packets in
    # order do not.
    yield from _rule(calls["socket"], [_refuse(errno.EAFNOSUPPORT)])
    pair = [
        _step(LOAD, ARGUMENTS),
        _step(EQUAL, 1, 1, 0),
        _refuse(errno.EAFNOSUPPORT),
        _step(LOAD, ARGUMENTS + 8),
    ]
    kinds = [_step(EQUAL, kind, len(CONNECTED) - i, 0) for i, kind in enumerate(CONNECTED)]
    yield from _rule(calls["socketpair"], [*pair, *kinds, _refuse(errno.EAFNOSUPPORT)])


def _rule(number: int, body: list[bytes]) -> Iterator[bytes]:
    """Yield *body* for one call, then ALLOW: it loads arguments, so later comparisons of the number
    would be wrong.
    """
    yield _step(EQUAL, number, 0, len(body) + 1)
    yield from body
    yield _step(RETURN, ALLOW)
