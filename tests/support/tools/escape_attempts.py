"""Attempts to escape from the sandbox or to reach the host.

Each is a program that sets `escaped` or fails with an error. It has these variables: CANARY (a file of the host),
FOLDER (its directory), PORT, UDP (servers of the host on 127.0.0.1), SOCKET, ABSTRACT (servers on unix sockets), PID (a
process of the host), SECRET_HALF (half of the content of the file), HOME (a home directory of the host), OUTSIDE
(package directories of the host), and `call(name, *arguments)`, which makes a system call.
"""

from __future__ import annotations

CONTROLS = {
    # Harmless attempts without privileges: they succeed without isolation, which shows that the sandbox prevents them.
    "tcp-connect": "import socket; socket.create_connection(('127.0.0.1', PORT), 2).send(b'x'); escaped = True",
    "tcp-by-name": "import socket; socket.create_connection(('localhost', PORT), 2).send(b'x'); escaped = True",
    "udp-send": """
        import socket
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', UDP)); escaped = True""",
    "http": """
        import urllib.request
        urllib.request.urlopen(f'http://127.0.0.1:{PORT}/', timeout=2).read(); escaped = True""",
    "unix-socket": """
        import socket
        socket.socket(socket.AF_UNIX).connect(SOCKET); escaped = True""",
    "abstract-socket": """
        import socket
        socket.socket(socket.AF_UNIX).connect(ABSTRACT); escaped = True""",
    "read-canary": "escaped = SECRET_HALF in open(CANARY).read()",
    "stat-canary": "escaped = os.stat(CANARY).st_size > 0",
    "list-folder": "escaped = bool(os.listdir(FOLDER))",
    "read-by-symlink": "os.symlink(CANARY, 'link'); escaped = SECRET_HALF in open('link').read()",
    "symlink-to-root": "os.symlink('/', 'root'); escaped = SECRET_HALF in open('root' + CANARY).read()",
    "symlink-from-tar": """
        import io, tarfile
        with tarfile.open('a.tar', 'w') as tar:
            link = tarfile.TarInfo('out'); link.type = tarfile.SYMTYPE; link.linkname = FOLDER; tar.addfile(link)
        with tarfile.open('a.tar') as tar:
            tar.extractall('.')
        escaped = bool(os.listdir('out'))""",
    "symlink-from-zip": """
        import zipfile
        with zipfile.ZipFile('a.zip', 'w') as file:
            info = zipfile.ZipInfo('out'); info.external_attr = 0o120777 << 16; file.writestr(info, CANARY)
        with zipfile.ZipFile('a.zip') as file:
            os.symlink(file.read('out').decode(), 'out')
        escaped = SECRET_HALF in open('out').read()""",
    "dots-upwards": "escaped = SECRET_HALF in open('../' * 20 + CANARY.lstrip('/')).read()",
    "glob-the-host": "import glob; escaped = bool(glob.glob(FOLDER + '/*'))",
    "walk-for-secrets": """
        escaped = any('canary.txt' in names for _, _, names in os.walk(os.path.dirname(FOLDER)))""",
    "passwd": "escaped = 'root:' in open('/etc/passwd').read()",
    "hosts": "escaped = bool(open('/etc/hosts').read())",
    "resolv-conf": "escaped = os.path.getsize('/etc/hostname') > 0",
    "etc": "escaped = bool(os.listdir('/etc'))",
    "var": "escaped = bool(os.listdir('/var'))",
    "home": "escaped = os.path.isdir(HOME) and os.path.exists(HOME)",
    "environ-of-the-parent": """
        escaped = b'PATH=' in open(f'/proc/{os.getppid()}/environ', 'rb').read()""",
    "proc-host-process": "escaped = bool(open(f'/proc/{PID}/cmdline').read())",
    "proc-list": "escaped = str(PID) in os.listdir('/proc')",
    "proc-cpuinfo": "escaped = bool(open('/proc/cpuinfo').read())",
    "proc-mounts": "escaped = bool(open('/proc/self/mounts').read())",
    "sys": "escaped = bool(os.listdir('/sys'))",
    "network-interfaces": "import socket; escaped = any(name != 'lo' for _, name in socket.if_nameindex())",
    "signal-zero": "os.kill(PID, 0); escaped = True",
    "priority-of-another": "os.getpriority(os.PRIO_PROCESS, PID); escaped = True",
    "affinity-of-another": "os.sched_getaffinity(PID); escaped = True",
    "session-of-another": "os.getsid(PID); escaped = True",
    "shell": "import subprocess; escaped = b'hi' in subprocess.check_output(['/bin/sh', '-c', 'echo hi'])",
    "system": "escaped = os.system('exit 0') == 0",
    "cat": "import subprocess; escaped = b'root' in subprocess.run(['cat', '/etc/passwd'], capture_output=True).stdout",
    "hostname": "import socket; escaped = socket.gethostname() != 'sandbox'",
    "host-packages": "import importlib.util as u; sys.path += OUTSIDE; escaped = u.find_spec('pytest') is not None",
    "users": "import pwd; escaped = any(user.pw_name == 'root' for user in pwd.getpwall())",
    "memfd": "escaped = os.memfd_create('x') >= 0",
}

ATTEMPTS = {
    # Resources shared by all calls or by the whole machine.
    "lock-what-all-calls-share": "import fcntl; fcntl.flock(open(sys.executable, 'rb'), fcntl.LOCK_EX); escaped = True",
    "see-locks-of-other-calls": """
        import fcntl, struct
        file = open(sys.executable, 'rb')
        fcntl.fcntl(file, fcntl.F_GETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)); escaped = True""",
    "watch-what-all-calls-share": "call('inotify_init1', 0); escaped = True",
    "watch-reads-of-what-all-calls-share": """
        import fcntl
        fcntl.fcntl(os.open(os.path.dirname(os.__file__), os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS)
        escaped = True""",
    "lease-on-what-all-calls-share": """
        import fcntl
        fcntl.fcntl(open(os.__file__), fcntl.F_SETLEASE, fcntl.F_RDLCK); escaped = True""",
    "hint-on-what-all-calls-share": """
        import fcntl
        fcntl.fcntl(open(os.__file__), 1036, (2).to_bytes(8, 'little')); escaped = True""",
    "requests-of-the-whole-machine": """
        place = ctypes.c_ulong(0)
        call('io_setup', 60_000, ctypes.byref(place)); escaped = True""",
    **CONTROLS,
    # The network.
    "dns": "import socket; escaped = bool(socket.getaddrinfo('example.com', 80))",
    "tcp-outside": "import socket; socket.create_connection(('1.1.1.1', 53), 1); escaped = True",
    "tcp-v6": "import socket; socket.create_connection(('::1', PORT), 1); escaped = True",
    "raw-socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); escaped = True",
    "packet-socket": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW); escaped = True",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); escaped = True",
    "vsock": "import socket; socket.socket(40, socket.SOCK_STREAM).connect((2, 1024)); escaped = True",
    "kernel-crypto-socket": "import socket; socket.socket(38, socket.SOCK_SEQPACKET); escaped = True",
    "bluetooth": "import socket; socket.socket(31, socket.SOCK_RAW, 1); escaped = True",
    "listen": "import socket; socket.create_server(('0.0.0.0', 0)); escaped = True",
    "socketpair-inet": "call('socketpair', 2, 1, 0, (ctypes.c_int * 2)()); escaped = True",
    "socketpair-then-connect": """
        import socket
        socket.socketpair()[0].connect(SOCKET); escaped = True""",
    "multiprocessing-listener": "from multiprocessing.connection import Listener; Listener(); escaped = True",
    "environ": "escaped = any('strands_canary' in value for value in os.environ.values())",
    # Files of the host.
    "shadow": "open('/etc/shadow').read(); escaped = True",
    "ssh-keys": "os.listdir(HOME + '/.ssh'); escaped = True",
    "write-canary": "open(CANARY, 'w').write('x'); escaped = True",
    "append-canary": "open(CANARY, 'a').write('x'); escaped = True",
    "truncate-canary": "os.truncate(CANARY, 0); escaped = True",
    "unlink-canary": "os.unlink(CANARY); escaped = True",
    "rename-canary": "os.rename(CANARY, '/tmp/mine'); escaped = True",
    "hardlink-canary": "os.link(CANARY, '/tmp/mine'); escaped = SECRET_HALF in open('/tmp/mine').read()",
    "remove-tree": "import shutil; shutil.rmtree(FOLDER); escaped = True",
    "write-next-to-canary": "open(FOLDER + '/new', 'w'); escaped = True",
    "docker-socket": "import socket; socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock'); escaped = True",
    "tar-with-absolute-path": """
        import io, tarfile, warnings
        warnings.simplefilter("ignore")  # Python 3.13 warns of what 3.14 refuses
        with tarfile.open('a.tar', 'w') as tar:
            info = tarfile.TarInfo(CANARY); info.size = 1; tar.addfile(info, io.BytesIO(b'x'))
        with tarfile.open('a.tar') as tar:
            tar.extractall('/')
        escaped = False""",
    "hardlink-from-tar": """
        import tarfile
        with tarfile.open('a.tar', 'w') as tar:
            link = tarfile.TarInfo('out'); link.type = tarfile.LNKTYPE; link.linkname = CANARY; tar.addfile(link)
        with tarfile.open('a.tar') as tar:
            try: tar.extractall('.')
            except KeyError as error: raise OSError(error)
        escaped = SECRET_HALF in open('out').read()""",
    # The interpreter, and the root.
    "write-interpreter": "open(sys.executable, 'r+b'); escaped = True",
    "replace-interpreter": "os.rename('/tmp/main.py', sys.executable); escaped = True",
    "write-stdlib": "open(os.__file__, 'a'); escaped = True",
    "new-file-in-stdlib": "open(os.path.dirname(os.__file__) + '/sitecustomize.py', 'w'); escaped = True",
    "new-pyc": "open(os.path.dirname(os.__file__) + '/__pycache__/x.pyc', 'w'); escaped = True",
    "chmod-stdlib": "os.chmod(os.__file__, 0o777); escaped = True",
    "chown-stdlib": "os.chown(os.__file__, os.getuid(), -1); escaped = True",
    "times-of-stdlib": "os.utime(os.__file__); escaped = True",
    "attributes-of-stdlib": "os.setxattr(os.__file__, 'user.x', b'x'); escaped = True",
    "write-system-library": "open(os.environ['LD_LIBRARY_PATH'].split(':')[-1] + '/x.so', 'w'); escaped = True",
    "write-root": "open('/x', 'w'); escaped = True",
    "mkdir-root": "os.mkdir('/x'); escaped = True",
    "write-dev": "open('/dev/x', 'w'); escaped = True",
    "other-site-packages": """
        import glob
        escaped = any(glob.glob(f'/python/lib*/python*/{name}/*') for name in ('site-packages', 'dist-packages'))""",
    # Devices.
    "dev-mem": "open('/dev/mem', 'rb'); escaped = True",
    "dev-kmsg": "open('/dev/kmsg'); escaped = True",
    "dev-disk": "import glob; escaped = any(glob.glob(f'/dev/{name}*') for name in ('sd', 'vd', 'nvme', 'dm', 'loop'))",
    "dev-kvm": "open('/dev/kvm'); escaped = True",
    "dev-fuse": "open('/dev/fuse'); escaped = True",
    "dev-gpu": "import glob; escaped = bool(glob.glob('/dev/nvidia*') + glob.glob('/dev/dri/*'))",
    "terminal": "open('/dev/tty'); escaped = True",
    "new-terminal": "os.openpty(); escaped = True",
    "mknod-disk": "os.mknod('sda', 0o60660, os.makedev(8, 0)); open('sda', 'rb'); escaped = True",
    "mknod-memory": "os.mknod('mem', 0o20660, os.makedev(1, 1)); open('mem', 'rb'); escaped = True",
    "type-into-terminal": """
        import fcntl
        for number in (0, 1, 2):
            try: fcntl.ioctl(number, 0x5412, b'x'); escaped = True
            except OSError as error: assert error.errno == errno.EPERM, error""",
    "terminal-selection": """
        import fcntl
        try: fcntl.ioctl(0, 0x541C, b'x'); escaped = True
        except OSError as error: assert error.errno == errno.EPERM, error""",
    # Inherited descriptors.
    "inherited-descriptors": """
        for number in range(3, 1000):
            try: os.fstat(number)
            except OSError: continue
            escaped = True""",
    "read-from-inherited": """
        for number in range(3, 1000):
            try: escaped = escaped or bool(os.pread(number, 10, 0))
            except OSError: pass""",
    "write-to-stdin": "os.write(0, b'x'); escaped = True",
    "directory-of-a-descriptor": """
        for number in range(0, 1000):
            try: os.fchdir(number); escaped = True
            except OSError: pass""",
    "proc-self-fd": "os.listdir('/proc/self/fd'); escaped = True",
    # Other processes.
    "kill-host-process": "import signal; os.kill(PID, signal.SIGKILL); escaped = True",
    "kill-parent": "import signal; os.kill(os.getppid(), signal.SIGKILL); escaped = False",
    "kill-process-one": """
        import signal, time
        try: os.kill(1, signal.SIGKILL)
        except PermissionError: pass
        time.sleep(0.1); escaped = False  # it would be gone, and we with it""",
    "kill-group-of-host": "import signal; os.killpg(PID, signal.SIGKILL); escaped = True",
    "kill-all-pids": """
        import signal
        for pid in range(3, 40000):
            if pid != os.getpid():
                try: os.kill(pid, signal.SIGKILL); escaped = True
                except OSError: pass""",
    "pidfd": "import signal; signal.pidfd_send_signal(os.pidfd_open(PID), signal.SIGKILL); escaped = True",
    "pidfd-getfd": "call('pidfd_getfd', os.pidfd_open(os.getppid()), 0, 0); escaped = True",
    "ptrace-parent": "call('ptrace', 16, os.getppid(), 0, 0); escaped = True",
    "ptrace-host": "call('ptrace', 0x4206, PID, 0, 0); escaped = True",
    "ptrace-traceme": "call('ptrace', 0, 0, 0, 0); escaped = True",
    "memory-of-parent": "open(f'/proc/{os.getppid()}/mem', 'rb'); escaped = True",
    "process-vm-read": """
        class Vec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
        buffer = ctypes.create_string_buffer(8)
        here = Vec(ctypes.addressof(buffer), 8)
        call('process_vm_readv', os.getppid(), ctypes.byref(here), 1, ctypes.byref(here), 1, 0); escaped = True""",
    "limits-of-another": "import resource; resource.prlimit(PID, resource.RLIMIT_CPU, (1, 1)); escaped = True",
    "proc-root": "escaped = SECRET_HALF in open('/proc/1/root' + CANARY).read()",
    "proc-cwd": "os.chdir('/proc/1/cwd'); escaped = True",
    # Privileges.
    "setuid": "os.setuid(0); escaped = True",
    "setresuid": "os.setresuid(0, 0, 0); escaped = True",
    "setgid": "os.setgid(0); escaped = True",
    "setgroups": "os.setgroups([0]); escaped = True",
    "root-already": "escaped = os.getuid() == 0 or os.geteuid() == 0 or os.getgid() == 0",
    "setuid-bit": """
        import shutil, subprocess
        shutil.copy(sys.executable, 'root-python'); os.chmod('root-python', 0o6755)
        seen = subprocess.run(['/tmp/root-python', '-S', '-c', 'import os; print(os.geteuid())'], capture_output=True)
        escaped = seen.stdout.strip() == b'0'""",
    "capabilities": """
        class Head(ctypes.Structure): _fields_ = [('version', ctypes.c_uint32), ('pid', ctypes.c_int)]
        head, data = Head(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(ctypes.byref(head), data) == 0
        escaped = any((data[0], data[1], data[3], data[4]))  # effective and permitted""",
    "take-capabilities": """
        class Head(ctypes.Structure): _fields_ = [('version', ctypes.c_uint32), ('pid', ctypes.c_int)]
        head, data = Head(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)
        if libc.capset(ctypes.byref(head), data): raise OSError(ctypes.get_errno(), 'capset')
        escaped = True""",
    "new-privileges": "escaped = libc.prctl(39, 0, 0, 0, 0) != 1",
    "raise-limits": """
        import resource
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
            try: resource.setrlimit(kind, (resource.RLIM_INFINITY,) * 2); escaped = True
            except ValueError: pass""",
    "nice": "os.nice(-5); escaped = True",
    "real-time": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)); escaped = True",
    "lock-memory": "if libc.mlockall(3): raise OSError(ctypes.get_errno(), 'mlockall')\nescaped = True",
    # The kernel.
    "mount": "call('mount', b'none', b'/tmp', b'tmpfs', 0, 0); escaped = True",
    "bind-mount": "call('mount', b'/', b'/tmp', 0, 4096, 0); escaped = True",
    "remount-root": "call('mount', 0, b'/', 0, 32 | 4096, 0); escaped = True",
    "umount": "call('umount2', b'/python', 2); escaped = True",
    "new-mount-api": "call('fsopen', b'tmpfs', 0); escaped = True",
    "open-tree": "call('open_tree', -100, b'/', 1); escaped = True",
    "chroot": "os.chroot('/tmp'); escaped = True",
    "pivot-root": "call('pivot_root', b'/tmp', b'/tmp'); escaped = True",
    "unshare-user": "call('unshare', 0x10000000); escaped = True",
    "unshare-mount": "call('unshare', 0x00020000); escaped = True",
    "clone-user-namespace": "if call('clone', 0x10000000 | 17, 0, 0, 0, 0) == 0: os._exit(0)\nescaped = True",
    "clone-network-namespace": "if call('clone', 0x40000000 | 17, 0, 0, 0, 0) == 0: os._exit(0)\nescaped = True",
    "clone3": "call('clone3', ctypes.create_string_buffer(88), 88); escaped = True",
    "setns": "call('setns', 0, 0); escaped = True",
    "keyring": "call('keyctl', 0, -3, 1); escaped = True",
    "add-key": "call('add_key', b'user', b'x', b'y', 1, -3); escaped = True",
    "bpf": "call('bpf', 0, ctypes.create_string_buffer(128), 128); escaped = True",
    "perf": "call('perf_event_open', ctypes.create_string_buffer(128), 0, -1, -1, 0); escaped = True",
    "io-uring": "call('io_uring_setup', 8, ctypes.create_string_buffer(256)); escaped = True",
    "userfaultfd": "call('userfaultfd', 1); escaped = True",
    "kernel-log": "call('syslog', 3, ctypes.create_string_buffer(64), 64); escaped = True",
    "kernel-module": "call('init_module', b'', 0, b''); escaped = True",
    "reboot": "call('reboot', 0xfee1dead, 672274793, 0, 0); escaped = True",
    "set-hostname": "import socket; socket.sethostname('mine'); escaped = True",
    "set-clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0); escaped = True",
    "file-handle": "call('open_by_handle_at', -100, ctypes.create_string_buffer(64), 0); escaped = True",
    "personality": "call('personality', 0x0040000); escaped = True",
    "system-v-memory": "call('shmget', 0, 4096, 0o1600); escaped = True",
    "system-v-messages": "call('msgget', 0, 0o1600); escaped = True",
    "message-queue": "call('mq_open', b'x', 0o102, 0o600, 0); escaped = True",
    "fanotify": "call('fanotify_init', 0, 0); escaped = True",
    "unknown-system-call": "call(NEWEST + 1, 0); escaped = True",
    "core-pattern": "open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/x'); escaped = True",
    "sysrq": "open('/proc/sysrq-trigger', 'w').write('b'); escaped = True",
    "cgroup-release-agent": "os.mkdir('/sys/fs/cgroup/x'); escaped = True",
}
"""Name to code; with those above, all of them."""
