"""Which system calls a container may make: names, by purpose.

What is in no group here does not exist for a program inside. Most names stand for x86_64 and
aarch64 alike; an engine skips those that its machine or its libseccomp does not know.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ALLOWED", "FORBIDDEN", "UNKNOWN"]

_GROUPS: Final = {
    "files": """
        access cachestat chdir chmod chown close close_range copy_file_range creat dup dup2 dup3
        faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat
        fcntl fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstatfs fsync
        ftruncate futimesat getcwd getdents getdents64 getxattr getxattrat ioctl lchown lgetxattr
        link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat mkdir
        mkdirat mknod mknodat newfstatat open openat openat2 pread64 preadv preadv2 pwrite64
        pwritev pwritev2 read readahead readlink readlinkat readv removexattr removexattrat
        rename renameat renameat2 rmdir sendfile setxattr setxattrat splice stat statfs statx
        symlink symlinkat sync sync_file_range syncfs tee truncate umask unlink unlinkat utime
        utimensat utimes write writev
    """,
    "waiting for files and events": """
        epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2
        inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy
        io_getevents io_setup io_submit pipe pipe2 poll ppoll pselect6 select signalfd signalfd4
        timerfd_create timerfd_gettime timerfd_settime
    """,
    "memory": """
        brk madvise map_shadow_stack membarrier memfd_create mincore mlock mlock2 mlockall mmap
        mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect
    """,
    "processes and threads": """
        arch_prctl execve execveat exit exit_group fork futex futex_requeue futex_wait
        futex_waitv futex_wake get_robust_list getcpu getpgid getpgrp getpid getppid getpriority
        getrlimit getrusage getsid gettid ioprio_get ioprio_set pidfd_open prctl prlimit64 rseq
        sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
        sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr
        sched_setparam sched_setscheduler sched_yield set_robust_list set_tid_address setpgid
        setpriority setrlimit setsid sysinfo times uname vfork wait4 waitid
    """,
    "signals": """
        kill pause pidfd_send_signal restart_syscall rt_sigaction rt_sigpending rt_sigprocmask
        rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sigaltstack
        tgkill tkill
    """,
    "time": """
        alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep
        setitimer time timer_create timer_delete timer_getoverrun timer_gettime timer_settime
    """,
    # Changing them takes a capability that nobody inside has; asking for the same again does not.
    "identity": """
        capget capset getegid geteuid getgid getgroups getresgid getresuid getuid setfsgid
        setfsuid setgid setgroups setregid setresgid setresuid setreuid setuid
    """,
    "giving up more": """
        landlock_add_rule landlock_create_ruleset landlock_restrict_self seccomp
    """,
    "sockets that are open": """
        accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg
        recvmsg sendmmsg sendmsg sendto setsockopt shutdown
    """,
    "talk between processes, in the container's own IPC namespace": """
        mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget
        msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget
    """,
    "randomness": "getrandom",
    # Entered from code that the kernel puts there when somebody outside watches a function.
    "probes from outside": "uprobe uretprobe",
}

_FORBIDDEN: Final = {
    "namespaces, mounts and the root": """
        chroot mount pivot_root setdomainname sethostname setns umount2 unshare
    """,
    # A server that traces its container's first process can also keep it from being removed.
    "other processes": "kcmp process_vm_readv process_vm_writev ptrace",
    "handles, which open files outside every mount": "name_to_handle_at open_by_handle_at",
    "programs and keys in the kernel": """
        add_key bpf fanotify_init fanotify_mark keyctl lookup_dcookie perf_event_open request_key
        userfaultfd
    """,
    "the machine": """
        acct adjtimex clock_adjtime clock_settime delete_module finit_module init_module ioperm
        iopl kexec_file_load kexec_load quotactl reboot settimeofday swapoff swapon syslog vhangup
    """,
    "where memory lies": "get_mempolicy mbind migrate_pages move_pages set_mempolicy",
    "what nothing current needs": """
        _sysctl create_module epoll_ctl_old epoll_wait_old get_kernel_syms get_thread_area
        modify_ldt nfsservctl query_module remap_file_pages set_thread_area sysfs uselib ustat
        vmsplice
    """,
}

_UNKNOWN: Final = """
    clone3 fsconfig fsmount fsopen fspick io_pgetevents io_uring_enter io_uring_register
    io_uring_setup listmount lsm_get_self_attr lsm_list_modules lsm_set_self_attr memfd_secret
    mount_setattr move_mount open_tree open_tree_attr pidfd_getfd process_madvise
    process_mrelease quotactl_fd set_mempolicy_home_node statmount
"""


def _names(*groups: str) -> tuple[str, ...]:
    return tuple(sorted(name for group in groups for name in group.split()))


ALLOWED: Final = _names(*_GROUPS.values())
"""Allowed whatever the arguments."""

FORBIDDEN: Final = _names(*_FORBIDDEN.values())
"""Refused with EPERM: programs know these calls, and that they may be refused."""

UNKNOWN: Final = _names(_UNKNOWN)
"""Refused with ENOSYS, as by a kernel that lacks them: programs then take the older way."""
