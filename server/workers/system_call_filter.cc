#include "server/workers/system_call_filter.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kiln::server {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kAuditArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kAuditArch = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kAuditArch = 0;
#endif

constexpr uint32_t kAllow = SECCOMP_RET_ALLOW;
constexpr uint32_t kKill = SECCOMP_RET_KILL_PROCESS;
constexpr uint32_t Fail(int error) {
  return SECCOMP_RET_ERRNO | static_cast<uint32_t>(error);
}

// Whatever would leave a mark on a disk, O_TMPFILE included: it needs a way to write.
constexpr uint32_t kWriteFlags = O_ACCMODE | O_CREAT | O_TRUNC;

constexpr int kAllowed[] = {
    // Files and sockets that are open.
    __NR_read,
    __NR_write,
    __NR_readv,
    __NR_writev,
    __NR_pread64,
    __NR_pwrite64,
    __NR_recvfrom,
    __NR_sendto,
    __NR_recvmsg,
    __NR_sendmsg,
    __NR_ppoll,
    __NR_close,
    __NR_fstat,
    __NR_lseek,
    __NR_ftruncate,
    __NR_dup,
    __NR_dup3,
    __NR_statx,
    __NR_readlinkat,
    // Memory; mmap and mprotect have rules of their own, as fcntl.
    __NR_munmap,
    __NR_mremap,
    __NR_madvise,
    __NR_brk,
    __NR_mincore,
    __NR_membarrier,
    // Waiting, time, chance.
    __NR_futex,
    __NR_sched_yield,
    __NR_nanosleep,
    __NR_clock_nanosleep,
    __NR_clock_gettime,
    __NR_clock_getres,
    __NR_gettimeofday,
    __NR_getrandom,
    // The process itself.
    __NR_getpid,
    __NR_gettid,
    __NR_getppid,
    __NR_getuid,
    __NR_geteuid,
    __NR_getgid,
    __NR_getegid,
    __NR_getrusage,
    __NR_times,
    __NR_uname,
    __NR_sysinfo,
    __NR_sched_getaffinity,
    __NR_getcpu,
    __NR_rt_sigaction,
    __NR_rt_sigprocmask,
    __NR_rt_sigreturn,
    __NR_sigaltstack,
    __NR_restart_syscall,
    __NR_set_robust_list,
    __NR_set_tid_address,
    __NR_exit,
    __NR_exit_group,
#ifdef __NR_newfstatat
    __NR_newfstatat,
#endif
#ifdef __NR_rseq
    __NR_rseq,
#endif
#ifdef __x86_64__  // older forms, which a C library may still use
    __NR_poll,
    __NR_dup2,
    __NR_stat,
    __NR_lstat,
    __NR_readlink,
    __NR_time,
#endif
};

// What else the warm process does, some of it in a task's process before that has its own filter.
constexpr int kAllowedToWorkers[] = {__NR_memfd_create, __NR_prctl, __NR_tgkill};

// What a program does beyond that while it starts, and the worker that waits for it.
constexpr int kAllowedToAssemblers[] = {
    __NR_pipe2,
    __NR_wait4,
    __NR_waitid,
    __NR_setitimer,
    __NR_sched_get_priority_min,
    __NR_sched_get_priority_max,
    __NR_faccessat,
    __NR_getcwd,
    __NR_mmap,
    __NR_mprotect,
    __NR_openat,
#ifdef __x86_64__
    __NR_access,
    __NR_arch_prctl,
    __NR_open,
#endif
};

// No flags and owners of open files, which other processes share: of standard error the server.
constexpr uint32_t kFileControls[] = {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL};

// How the worker makes a task's process (server/workers/task_process.cc).
constexpr uint32_t kTaskCloneFlags = CLONE_PARENT | SIGCHLD;

constexpr int kFatal[] = {
    // Other programs and other processes; fork and threads are clone, which has its own rule.
    __NR_execve,
    __NR_execveat,
    __NR_kill,
    __NR_tkill,
    __NR_rt_sigqueueinfo,
    __NR_ptrace,
    __NR_process_vm_readv,
    __NR_process_vm_writev,
    // The network.
    __NR_socket,
    __NR_connect,
    __NR_bind,
    __NR_listen,
    __NR_accept,
    __NR_accept4,
    // The file system; opening has its own rule.
    __NR_mkdirat,
    __NR_mknodat,
    __NR_symlinkat,
    __NR_linkat,
    __NR_unlinkat,
    __NR_renameat2,
    __NR_truncate,
    __NR_fallocate,
    __NR_fchmodat,
    __NR_fchownat,
    __NR_mount,
    __NR_umount2,
    __NR_pivot_root,
    __NR_chroot,
    __NR_unshare,
    __NR_setns,
    // The kernel's own.
    __NR_bpf,
    __NR_perf_event_open,
    __NR_keyctl,
    __NR_add_key,
    __NR_request_key,
    __NR_init_module,
    __NR_finit_module,
    __NR_delete_module,
    __NR_kexec_load,
    __NR_reboot,
#ifdef __NR_io_uring_setup
    __NR_io_uring_setup,  // its calls would pass this filter by
#endif
#ifdef __x86_64__
    __NR_fork,
    __NR_vfork,
    __NR_creat,
    __NR_mkdir,
    __NR_mknod,
    __NR_symlink,
    __NR_link,
    __NR_unlink,
    __NR_rmdir,
    __NR_rename,
    __NR_renameat,
    __NR_chmod,
    __NR_chown,
#endif
};

// Writes the filter front to back. Between rules the accumulator holds the call's number.
class Program {
 public:
  void LoadWord(size_t offset) { Add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
  void LoadNumber() { LoadWord(offsetof(seccomp_data, nr)); }
  // Every argument here is an int or a set of low bits: the low half is all there is to it.
  void LoadArgument(int index) {
    LoadWord(offsetof(seccomp_data, args) + sizeof(uint64_t) * static_cast<size_t>(index));
  }
  void Return(uint32_t action) { Add(BPF_RET | BPF_K, action); }
  void ReturnUnlessEqual(uint32_t value, uint32_t action) {
    Add(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0);
    Return(action);
  }
  void ReturnIfAtLeast(uint32_t value, uint32_t action) {
    Add(BPF_JMP | BPF_JGE | BPF_K, value, 0, 1);
    Return(action);
  }
  void ReturnIfCall(int number, uint32_t action) {
    Add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1);
    Return(action);
  }
  // `if_set` where the argument has one of `bits`, else `if_clear`.
  void ForCallTestBits(int number, int argument, uint32_t bits, uint32_t if_set,
                       uint32_t if_clear) {
    Add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 4);
    LoadArgument(argument);
    Add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    Return(if_set);
    Return(if_clear);
  }
  void ForCallTestEqual(int number, int argument, uint32_t value, uint32_t otherwise) {
    Add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 4);
    LoadArgument(argument);
    Add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    Return(kAllow);
    Return(otherwise);
  }
  void AllowCallWith(int number, int argument, uint32_t value) {
    Add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 4);
    LoadArgument(argument);
    Add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    Return(kAllow);
    LoadNumber();
  }
  std::vector<sock_filter>& instructions() { return instructions_; }

 private:
  void Add(int code, uint32_t value, uint8_t if_true = 0, uint8_t if_false = 0) {
    instructions_.push_back({static_cast<uint16_t>(code), if_true, if_false, value});
  }
  std::vector<sock_filter> instructions_;
};

Program MakeProgram(Filtered who, int program_fd) {
  Program program;
  program.LoadWord(offsetof(seccomp_data, arch));
  program.ReturnUnlessEqual(kAuditArch, kKill);
  program.LoadNumber();
#ifdef __x86_64__
  program.ReturnIfAtLeast(__X32_SYSCALL_BIT, kKill);  // the same calls under other numbers
#endif
  if (who == Filtered::kAssembler) {
    for (int number : kAllowedToAssemblers) program.ReturnIfCall(number, kAllow);
    program.AllowCallWith(__NR_execveat, 0, static_cast<uint32_t>(program_fd));
    program.AllowCallWith(__NR_clone, 0, SIGCHLD);
  }
#ifdef __x86_64__
  program.ForCallTestBits(__NR_open, 1, kWriteFlags, kKill, kAllow);
#endif
  program.ForCallTestBits(__NR_openat, 2, kWriteFlags, kKill, kAllow);
  program.ForCallTestBits(__NR_mmap, 2, PROT_EXEC, Fail(EPERM), kAllow);
  program.ForCallTestBits(__NR_mprotect, 2, PROT_EXEC, Fail(EPERM), kAllow);
  for (uint32_t control : kFileControls) program.AllowCallWith(__NR_fcntl, 1, control);
  if (who != Filtered::kTask) {
    program.AllowCallWith(__NR_clone, 0, kTaskCloneFlags);
    for (int number : kAllowedToWorkers) program.ReturnIfCall(number, kAllow);
  }
  program.ForCallTestBits(__NR_clone, 0, CLONE_THREAD, Fail(EAGAIN), kKill);
#ifdef __NR_clone3
  program.ReturnIfCall(__NR_clone3, Fail(ENOSYS));  // its flags are out of sight: "use clone"
#endif
  auto own_pid = static_cast<uint32_t>(getpid());
  program.ForCallTestEqual(__NR_tgkill, 0, own_pid, kKill);  // abort() signals itself
  program.ForCallTestEqual(__NR_prlimit64, 0, 0, Fail(EPERM));
  for (int number : kAllowed) program.ReturnIfCall(number, kAllow);
  for (int number : kFatal) program.ReturnIfCall(number, kKill);
  program.Return(Fail(EPERM));
  return program;
}

}  // namespace

absl::Status FilterSystemCalls(Filtered who, int program_fd) {
  if (kAuditArch == 0) return absl::UnimplementedError("no seccomp filter for this processor");
  Program program = MakeProgram(who, program_fd);
  sock_fprog filter = {static_cast<unsigned short>(program.instructions().size()),
                       program.instructions().data()};
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0) {
    return absl::UnimplementedError(absl::StrCat("seccomp: ", strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace kiln::server
