# ruff: noqa: E501 - programs as text
"""Honest programs for the tests of sandboxes: none of them may fail."""

from __future__ import annotations

HONEST = {
    "print": ("print(42)", "42"),
    "sum of standard input": ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", "6"),
    "lines of standard input": ("print(input(), input(), input())", "1 2 3"),
    "big output": (
        "print(len('x' * 60000)); print('x' * 60000, file=__import__('sys').stderr)",
        "60000",
    ),
    "unicode": ("print('äöü 中文 🎉')", "äöü 中文 🎉"),
    "threads": (
        "import threading\nr = []\nt = [threading.Thread(target=r.append, args=(i,)) for i in range(12)]\n"
        "[x.start() for x in t]; [x.join() for x in t]\nprint(sum(r))",
        "66",
    ),
    "thread pool": (
        "from concurrent.futures import ThreadPoolExecutor as T\nwith T(8) as t: print(sum(t.map(abs, range(-9, 0))))",
        "45",
    ),
    "process pool": (
        "import multiprocessing as m\nif __name__ == '__main__':\n    with m.Pool(3) as p: print(sum(p.map(abs, range(-9, 0))))",
        "45",
    ),
    "subprocess": (
        "import subprocess\nprint(subprocess.check_output(['echo', 'hi']).decode())",
        "hi",
    ),
    "shell pipeline": ("import os\nos.system('seq 1 5 | sort -r | head -1')", "5"),
    "asyncio": (
        "import asyncio\nasync def f(): await asyncio.sleep(0.01); return 7\nprint(sum(asyncio.run(f()) for _ in range(3)))",
        "21",
    ),
    "recursion of 10,000 frames": (
        "import sys, threading\nsys.setrecursionlimit(20000)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(10000))",
        "10000",
    ),
    "temporary file": (
        "import tempfile\nwith tempfile.TemporaryFile() as f: print(f.write(b'abc'))",
        "3",
    ),
    "write and read in the working directory": (
        "open('a','w').write('hi')\nprint(open('a').read())",
        "hi",
    ),
    "a second module": ("import helper\nprint(helper.VALUE)", "11"),
    "a package in folders": ("from pkg.sub.mod import VALUE\nprint(VALUE)", "12"),
    "read a data file": ("import json\nprint(json.load(open('data.json'))['x'])", "5"),
    "sqlite": (
        "import sqlite3\nc = sqlite3.connect('x.db'); c.execute('create table t(a)'); c.execute('insert into t values (4)')\n"
        "c.commit(); print(c.execute('select a from t').fetchone()[0])",
        "4",
    ),
    "local server": (
        "import socket, threading\ns = socket.create_server(('127.0.0.1', 0))\n"
        "threading.Thread(target=lambda: s.accept()[0].send(b'ok')).start()\n"
        "print(socket.create_connection(s.getsockname()).recv(2).decode())",
        "ok",
    ),
    "pair of sockets": (
        "import socket\na, b = socket.socketpair(); a.send(b'q'); print(b.recv(1).decode())",
        "q",
    ),
    "decimal and fractions": (
        "from decimal import Decimal\nfrom fractions import Fraction\nprint(Decimal(1) / 8, Fraction(1, 3) * 3)",
        "0.125 1",
    ),
    "regular expressions": ("import re\nprint(re.sub('[aeiou]', '', 'sandbox'))", "sndbx"),
    "big integers": ("print(len(str(2 ** 10000)))", "3011"),
    "random with a seed": ("import random\nrandom.seed(1)\nprint(random.randint(1, 100))", "18"),
    "date": (
        "import datetime\nprint(datetime.date(2024, 2, 28) + datetime.timedelta(2))",
        "2024-03-01",
    ),
    "sleep": ("import time\ntime.sleep(0.2)\nprint('up')", "up"),
    "slow but in time": ("x = 0\nfor i in range(3_000_000): x += i\nprint(x)", "4499998500000"),
    "80 MB of memory": ("x = bytearray(80_000_000)\nprint(len(x))", "80000000"),
    "10 MB in a file": (
        "open('big', 'wb').write(bytes(10_000_000))\nimport os\nprint(os.path.getsize('big'))",
        "10000000",
    ),
    "signal handler": (
        "import signal, os\nsignal.signal(signal.SIGUSR1, lambda *a: print('got'))\nos.kill(os.getpid(), signal.SIGUSR1)",
        "got",
    ),
    "alarm handler": (
        "import signal, time\ndef f(*a): print('rang'); raise SystemExit\nsignal.signal(signal.SIGALRM, f)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\ntime.sleep(2)",
        "rang",
    ),
    "fork and wait": (
        "import os\np = os.fork()\nif not p: os._exit(3)\nprint(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))",
        "3",
    ),
    "mmap": ("import mmap\nm = mmap.mmap(-1, 4096); m[0:2] = b'ok'; print(m[0:2].decode())", "ok"),
    "gzip and hashes": (
        "import gzip, hashlib\nprint(len(gzip.decompress(gzip.compress(b'x' * 999))), hashlib.md5(b'').hexdigest()[:4])",
        "999 d41d",
    ),
    "unittest": (
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(1, 1)\n"
        "r = unittest.main(exit=False).result\nprint(r.testsRun, r.wasSuccessful())",
        "1 True",
    ),
    "ctypes": ("import ctypes\nprint(ctypes.CDLL(None).abs(-5))", "5"),
    "user and home": (
        "import getpass, os\nprint(getpass.getuser(), os.path.expanduser('~') == os.getcwd())",
        "nobody True",
    ),
    "named pipe": (
        "import os, threading\nos.mkfifo('p')\nthreading.Thread(target=lambda: open('p', 'w').write('via')).start()\n"
        "print(open('p').read())",
        "via",
    ),
    "shared memory": (
        "from multiprocessing import shared_memory as m\ns = m.SharedMemory(create=True, size=8); s.buf[0] = 9\n"
        "print(s.buf[0]); s.close(); s.unlink()",
        "9",
    ),
    "lock of a file": (
        "import fcntl\nf = open('l', 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('locked')",
        "locked",
    ),
    "counters": (
        "from collections import Counter\nprint(Counter('mississippi').most_common(2))",
        "[('i', 4), ('s', 4)]",
    ),
    "heap": (
        "import heapq\nh = [5, 1, 4]; heapq.heapify(h); heapq.heappush(h, 0)\nprint([heapq.heappop(h) for _ in range(4)])",
        "[0, 1, 4, 5]",
    ),
    "bisection": ("import bisect\nprint(bisect.bisect_left([1, 3, 5, 7], 5))", "2"),
    "iterators": (
        "from itertools import accumulate, permutations\nprint(len(list(permutations(range(6)))), list(accumulate([1, 2, 3])))",
        "720 [1, 3, 6]",
    ),
    "a cached recursion": (
        "from functools import lru_cache\n@lru_cache(None)\ndef f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(200))",
        "280571172992510140037611932413038677189525",
    ),
    "data classes": (
        "from dataclasses import dataclass, replace\n@dataclass(frozen=True)\nclass P: x: int; y: int = 2\nprint(replace(P(1), x=5))",
        "P(x=5, y=2)",
    ),
    "enumerations": (
        "import enum\nclass C(enum.Flag): A = 1; B = 2\nprint(C.A | C.B == C(3), list(C))",
        "True [<C.A: 1>, <C.B: 2>]",
    ),
    "pattern matching": (
        "def f(v):\n    match v:\n        case {'k': [a, *rest]}: return a, rest\n        case _: return None\nprint(f({'k': [1, 2, 3]}), f(0))",
        "(1, [2, 3]) None",
    ),
    "generators": (
        "def g():\n    x = yield 1\n    yield x * 2\ni = g(); print(next(i), i.send(21))",
        "1 42",
    ),
    "context managers": (
        "from contextlib import ExitStack, closing\nimport io\nwith ExitStack() as s:\n    f = s.enter_context(closing(io.StringIO())); f.write('x')\nprint(f.closed)",
        "True",
    ),
    "exceptions and groups": (
        "try:\n    raise ExceptionGroup('g', [ValueError(1), KeyError(2)])\nexcept* ValueError as e: print(len(e.exceptions))\nexcept* KeyError as e: print('key')",
        "1\nkey",
    ),
    "text wrapping": (
        "import textwrap\nprint(textwrap.fill('the quick brown fox', 10))",
        "the quick\nbrown fox",
    ),
    "differences of texts": (
        "import difflib\nprint(round(difflib.SequenceMatcher(None, 'abcd', 'bcde').ratio(), 2))",
        "0.75",
    ),
    "comma-separated values": (
        "import csv, io\nw = io.StringIO(); csv.writer(w).writerow(['a,b', 1]); print(next(csv.reader([w.getvalue().strip()])))",
        "['a,b', '1']",
    ),
    "nested JSON": (
        "import json\nprint(json.loads(json.dumps({'a': [1, None, 'ü']}))['a'][2])",
        "ü",
    ),
    "settings files": (
        "import configparser\nc = configparser.ConfigParser(); c.read_string('[a]\\nb = 3'); print(c.getint('a', 'b'))",
        "3",
    ),
    "TOML": ("import tomllib\nprint(tomllib.loads('[a]\\nb = [1, 2]')['a']['b'][1])", "2"),
    "XML": (
        "import xml.etree.ElementTree as E\nprint(E.fromstring('<a><b c=\"4\"/></a>').find('b').get('c'))",
        "4",
    ),
    "HTML": ("import html\nprint(html.unescape('&lt;&eacute;&gt;'))", "<é>"),
    "base64 and hexadecimals": (
        "import base64, binascii\nprint(base64.b64encode(b'hi').decode(), binascii.hexlify(b'hi').decode())",
        "aGk= 6869",
    ),
    "packed records": (
        "import struct, array\nprint(struct.unpack('>HI', struct.pack('>HI', 7, 9)), array.array('d', [1.5])[0])",
        "(7, 9) 1.5",
    ),
    "compression": (
        "import bz2, lzma, zlib\nd = b'y' * 5000\nprint(all(m.decompress(m.compress(d)) == d for m in (bz2, lzma, zlib)))",
        "True",
    ),
    "zip and tar files": (
        "import io, tarfile, zipfile\nz = zipfile.ZipFile('a.zip', 'w'); z.writestr('f', 'q'); z.close()\nt = tarfile.open('a.tar', 'w'); t.add('a.zip'); t.close()\nprint(zipfile.ZipFile('a.zip').read('f'), tarfile.open('a.tar').getnames())",
        "b'q' ['a.zip']",
    ),
    "message digests": (
        "import hashlib, hmac\nprint(hashlib.sha256(b'').hexdigest()[:8], hmac.new(b'k', b'm', 'sha1').hexdigest()[:8])",
        "e3b0c442 772b71c8",
    ),
    "secrets and identifiers": (
        "import secrets, uuid\nprint(len(secrets.token_hex(8)), uuid.uuid5(uuid.NAMESPACE_DNS, 'x').version, len(str(uuid.uuid4())))",
        "16 5 36",
    ),
    "statistics": (
        "import statistics as s\nprint(s.median([3, 1, 2]), s.pstdev([2, 2]), s.mode('aab'))",
        "2 0.0 a",
    ),
    "complex numbers": ("import cmath\nprint(abs(cmath.exp(1j * cmath.pi) + 1) < 1e-12)", "True"),
    "integer roots": (
        "import math\nprint(math.isqrt(10 ** 40), math.comb(50, 25), math.gcd(84, 36))",
        "100000000000000000000 126410606437752 12",
    ),
    "6,000 decimal digits": (
        "import decimal\ndecimal.getcontext().prec = 6000\nprint(str(decimal.Decimal(2).sqrt())[-4:])",
        "9791",
    ),
    "long integers as text": (
        "import sys\nsys.set_int_max_str_digits(0)\nprint(len(str(7 ** 9000)))",
        "7606",
    ),
    "time zones": (
        "import datetime as d, sys, zoneinfo as z\nif not z.available_timezones(): sys.exit(77)\nprint(d.datetime(2024, 7, 1, tzinfo=z.ZoneInfo('Europe/Berlin')).utcoffset())",
        "2:00:00",
    ),
    "calendar": ("import calendar\nprint(calendar.monthrange(2024, 2))", "(3, 29)"),
    "logging": (
        "import logging, sys\nlogging.basicConfig(stream=sys.stdout, format='%(levelname)s %(message)s')\nlogging.warning('w')",
        "WARNING w",
    ),
    "command-line arguments": (
        "import argparse\np = argparse.ArgumentParser(); p.add_argument('--n', type=int, default=4)\nprint(p.parse_args(['--n', '6']).n)",
        "6",
    ),
    "a filter as child": (
        "import subprocess\nprint(subprocess.run(['tr', 'a-z', 'A-Z'], input='abc', text=True, capture_output=True).stdout)",
        "ABC",
    ),
    "paths and patterns": (
        "from pathlib import Path\nPath('d/e').mkdir(parents=True); Path('d/e/x.txt').write_text('1')\nprint([p.name for p in Path('.').rglob('*.txt')])",
        "['x.txt']",
    ),
    "copies of folders": (
        "import os, shutil\nos.mkdir('s'); open('s/f', 'w').write('1'); shutil.copytree('s', 't'); shutil.move('t/f', 'g'); shutil.rmtree('s')\nprint(sorted(n for n in os.listdir() if len(n) == 1))",
        "['g', 't']",
    ),
    "links": (
        "import os\nopen('f', 'w').write('ok'); os.symlink('f', 'l'); os.link('f', 'h')\nprint(open('l').read(), os.stat('h').st_nlink, os.readlink('l'))",
        "ok 2 f",
    ),
    "permissions of files": (
        "import os, stat\nopen('f', 'w').close(); os.chmod('f', 0o600)\nprint(stat.filemode(os.stat('f').st_mode))",
        "-rw-------",
    ),
    "a named temporary file": (
        "import os, tempfile\nwith tempfile.NamedTemporaryFile('w+') as f:\n    f.write('abc'); f.flush(); print(os.path.getsize(f.name))",
        "3",
    ),
    "a temporary folder": (
        "import os, tempfile\nwith tempfile.TemporaryDirectory() as d: open(d + '/x', 'w').close(); print(os.listdir(d))\nprint(os.path.exists(d))",
        "['x']\nFalse",
    ),
    "pickles and copies": (
        "import copy, pickle\nx = [1, {2: (3,)}]\nprint(pickle.loads(pickle.dumps(x)) == copy.deepcopy(x) == x)",
        "True",
    ),
    "weak references": (
        "import gc, weakref\nclass A: pass\na = A(); w = weakref.ref(a); del a; gc.collect(); print(w())",
        "None",
    ),
    "own source": (
        "import inspect\ndef f(): return 1\nprint(inspect.getsource(f).strip())",
        "def f(): return 1",
    ),
    "syntax trees": (
        "import ast\nprint(ast.unparse(ast.parse('a=1+2')), eval(compile('3*4', 's', 'eval')))",
        "a = 1 + 2 12",
    ),
    "a caught traceback": (
        "import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: print(traceback.format_exc().splitlines()[-1])",
        "ZeroDivisionError: division by zero",
    ),
    "warnings": (
        "import warnings\nwith warnings.catch_warnings(record=True) as w:\n    warnings.simplefilter('always'); warnings.warn('x')\nprint(len(w))",
        "1",
    ),
    "queue between threads": (
        "import queue, threading\nq = queue.Queue()\nt = threading.Thread(target=lambda: [q.put(i) for i in range(5)] and q.put(None)); t.start()\nprint(sum(iter(q.get, None)))".replace(
            "[q.put(i) for i in range(5)] and q.put(None)",
            "([q.put(i) for i in range(5)], q.put(None))",
        ),
        "10",
    ),
    "conditions and events": (
        "import threading\ne = threading.Event(); r = []\nt = threading.Thread(target=lambda: (e.wait(5), r.append(1))); t.start(); e.set(); t.join(); print(r)",
        "[1]",
    ),
    "40 threads": (
        "import threading\nb = threading.Barrier(40); t = [threading.Thread(target=b.wait) for _ in range(39)]\n[x.start() for x in t]; b.wait(); [x.join() for x in t]; print('met')",
        "met",
    ),
    "tasks of asyncio": (
        "import asyncio\nasync def f(i): await asyncio.sleep(0.001 * i); return i * i\nasync def main(): return sum(await asyncio.gather(*map(f, range(10))))\nprint(asyncio.run(main()))",
        "285",
    ),
    "a child of asyncio": (
        "import asyncio\nasync def main():\n    p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1); return (await p.communicate())[0]\nprint(asyncio.run(main()))",
        "b'hi\\n'",
    ),
    "a queue of asyncio": (
        "import asyncio\nasync def main():\n    q = asyncio.Queue(2)\n    async def put():\n        for i in range(5): await q.put(i)\n    async with asyncio.TaskGroup() as g:\n        g.create_task(put()); return [await q.get() for _ in range(5)]\nprint(asyncio.run(main()))",
        "[0, 1, 2, 3, 4]",
    ),
    "time limit of asyncio": (
        "import asyncio\nasync def main():\n    try:\n        async with asyncio.timeout(0.05): await asyncio.sleep(9)\n    except TimeoutError: return 'late'\nprint(asyncio.run(main()))",
        "late",
    ),
    "selectors and pipes": (
        "import os, selectors\ns = selectors.DefaultSelector(); r, w = os.pipe(); s.register(r, 1); os.write(w, b'x')\nprint(os.read(s.select(1)[0][0].fd, 9))",
        "b'x'",
    ),
    "a process with a pipe": (
        "import multiprocessing as m\ndef f(c): c.send(c.recv() + 1)\nif __name__ == '__main__':\n    a, b = m.Pipe(); p = m.Process(target=f, args=(b,)); p.start(); a.send(41); print(a.recv()); p.join()",
        "42",
    ),
    "a queue between processes": (
        "import multiprocessing as m\ndef f(q): q.put(7)\nif __name__ == '__main__':\n    q = m.Queue(); p = m.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join()",
        "7",
    ),
    "executor of processes": (
        "from concurrent.futures import ProcessPoolExecutor as P\nif __name__ == '__main__':\n    with P(2) as p: print(list(p.map(abs, [-1, -2])))",
        "[1, 2]",
    ),
    "scheduler": (
        "import sched, time\ns = sched.scheduler(); r = []\ns.enter(0.02, 1, r.append, ('b',)); s.enter(0.01, 1, r.append, ('a',)); s.run(); print(r)",
        "['a', 'b']",
    ),
    "context variables": (
        "import contextvars\nv = contextvars.ContextVar('v', default=1); c = contextvars.copy_context(); c.run(v.set, 2); print(v.get(), c[v])",
        "1 2",
    ),
    "usage of resources": (
        "import resource, time\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0, time.process_time() > 0)",
        "True True",
    ),
    "lower its own limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (50, 50)); print(resource.getrlimit(resource.RLIMIT_NOFILE))",
        "(50, 50)",
    ),
    "the environment": (
        "import os\nos.environ['X'] = '1'\nprint(os.popen('echo $X').read().strip(), 'PATH' in os.environ)",
        "1 True",
    ),
    "standard input by lines": (
        "import sys\nprint([int(line) for line in sys.stdin])",
        "[1, 2, 3]",
    ),
    "standard input after its end": (
        "import sys\nsys.stdin.read()\nprint(repr(sys.stdin.read()))",
        "''",
    ),
    "a deep stack in a thread": (
        "import sys, threading\nsys.setrecursionlimit(60000); threading.stack_size(64 << 20); r = []\ndef f(n): return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: r.append(f(50000))); t.start(); t.join(); print(r)",
        "[50000]",
    ),
    "nested lists": (
        "x = []\nfor _ in range(90): x = [x]\nprint(repr(x).count('['), str(x) == repr(x))",
        "91 True",
    ),
    "views of memory": (
        "b = bytearray(b'abc'); memoryview(b)[1:] = b'xy'; print(b.decode())",
        "axy",
    ),
    "sieve of a million": (
        "n = 10 ** 6; s = bytearray([1]) * n; s[:2] = b'\\0\\0'\nfor i in range(2, 1000):\n    if s[i]: s[i * i::i] = bytes(len(range(i * i, n, i)))\nprint(sum(s))",
        "78498",
    ),
    "product of matrices": (
        "n = 60; a = [[i + j for j in range(n)] for i in range(n)]\nc = [[sum(x * y for x, y in zip(r, k)) for k in zip(*a)] for r in a]; print(c[59][59])",
        "487930",
    ),
    "eight queens": (
        "def q(r, c, d, e): return r == 8 or sum(q(r + 1, c | {i}, d | {r + i}, e | {r - i}) for i in range(8) if i not in c and r + i not in d and r - i not in e)\nprint(q(0, frozenset(), frozenset(), frozenset()))",
        "92",
    ),
    "a text of a million": (
        "def f():\n    s = ''\n    for i in range(200000): s += 'abcde'\n    return s\nprint(len(f()))",
        "1000000",
    ),
    "sort 200,000 numbers": (
        "import random\nrandom.seed(3); x = [random.random() for _ in range(200000)]; x.sort(); print(x == sorted(x), len(x))",
        "True 200000",
    ),
    "doctest": (
        'import doctest\ndef f():\n    """\n    >>> f()\n    3\n    """\n    return 3\nprint(doctest.testmod())',
        "TestResults(failed=0, attempted=1)",
    ),
    "tables in memory": (
        "import sqlite3\nc = sqlite3.connect(':memory:'); c.execute('create table t(a)'); c.executemany('insert into t values (?)', [(i,) for i in range(100)])\nprint(c.execute('select sum(a) from t where a % 2').fetchone())",
        "(2500,)",
    ),
    "a shelf": (
        "import shelve\nwith shelve.open('s') as s: s['k'] = [1]\nwith shelve.open('s') as s: print(s['k'])",
        "[1]",
    ),
    "Unicode": (
        "import unicodedata as u\nprint(len(u.normalize('NFD', 'é')), u.name('ß'), '\\U0001F600'.encode('utf-16-le').hex(), 'ǅ'.lower())",
        "2 LATIN SMALL LETTER SHARP S 3dd800de ǆ",
    ),
    "bytes that are no text": (
        "import os\nos.write(1, b'\\x1b[31m\\0\\xff')\nprint()",
        "\x1b[31m\0\ufffd",
    ),
    "map a file": (
        "import mmap\nopen('f', 'wb').write(b'hello')\nwith open('f', 'r+b') as f, mmap.mmap(f.fileno(), 0) as m: m[0:1] = b'j'\nprint(open('f').read())",
        "jello",
    ),
    "record locks": (
        "import fcntl\nf = open('l', 'w+'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.lockf(f, fcntl.LOCK_UN); print('free')",
        "free",
    ),
    "a script of the shell": (
        "import subprocess\nprint(subprocess.check_output(['sh', '-c', 'x=0; for i in 1 2 3; do x=$((x + i)); done; echo $x'], text=True))",
        "6",
    ),
    "tools of the shell": (
        "import subprocess\nprint(subprocess.check_output(r\"printf 'b\\na\\nb\\n' | sort | uniq -c | awk '{print $2 $1}' | tr '\\n' ' '\", shell=True, text=True))",
        "a1 b2",
    ),
    "exit handlers": ("import atexit\natexit.register(print, 'bye')\nprint('hi')", "hi\nbye"),
    "exit in a thread's absence": (
        "import sys, threading\nthreading.Thread(target=print, args=('done',)).start()\nsys.exit(0)",
        "done",
    ),
    "a default action restored": (
        "import signal, subprocess\nprint(subprocess.run(['sh', '-c', 'kill -TERM $$']).returncode, signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN)",
        "-15 True",
    ),
}
"""Name to the code and what it prints; standard input is ``1``, ``2``, ``3``."""
FILES = {"helper.py": b"VALUE = 11\n", "pkg/sub/mod.py": b"VALUE = 12\n", "data.json": b'{"x": 5}'}

COMPILED = {
    "a program in C": (
        '#include <stdio.h>\n#include <math.h>\nint main(void) { int a, b, c; if (scanf("%d %d %d", &a, &b, &c) != 3) return 1; printf("%d %.3f\\n", a + b + c, sqrt(2)); return 0; }',
        "main.c",
        "cc -O2 -o main main.c -lm && ./main",
        "6 1.414",
    ),
    "threads in C": (
        '#include <pthread.h>\n#include <stdio.h>\nstatic void *f(void *x) { *(int *)x += 1; return 0; }\nint main(void) { int v[20] = {0}, s = 0; pthread_t t[20]; for (int i = 0; i < 20; i++) pthread_create(t + i, 0, f, v + i); for (int i = 0; i < 20; i++) { pthread_join(t[i], 0); s += v[i]; } printf("%d\\n", s); return 0; }',
        "main.c",
        "cc -pthread -o main main.c && ./main",
        "20",
    ),
}
"""Name to the source, its file, the command of a shell, and what it prints; where the box has a compiler."""
SHARED_MEMORY = frozenset(
    {"process pool", "shared memory", "a queue between processes", "executor of processes"}
)
"""Programs that need a ``/dev/shm`` of their own."""
SOCKETS = frozenset({"local server"})
"""Programs that need sockets besides connected pairs."""
