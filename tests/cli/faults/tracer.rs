//! Runs the program under ptrace, and lets one of its system calls fail, do half its work, or be
//! its last.
//!
//! Nothing is built into the program for this, and every call is seen, whichever library makes it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// What a system call does, as far as faults are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads of files.
    Read,
    /// Writes to files, and changes of their length.
    Write,
    Sync,
    /// Opening files and directories, and listing directories.
    Open,
    /// Renaming, creating and removing of names, and changes of modes.
    Name,
    /// New threads.
    Thread,
    /// The question how much space is free.
    Space,
    Lock,
}

/// What becomes of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It does nothing and returns this error.
    Error(Errno),
    /// It is asked for half the bytes.
    Short,
    /// The process is killed before it.
    Kill,
    /// It tells of a file system with so many bytes free.
    Free(u64),
}

/// A fault at the calls of some kinds.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub kinds: &'static [Kind],
    pub fault: Fault,
    /// The number of the call, from 1 on; `None` for every call.
    pub at: Option<usize>,
}

/// What a call did to what is on the disk.
#[derive(Debug)]
pub enum Event {
    /// Bytes of a file.
    Changed(PathBuf),
    /// A new name.
    Created(PathBuf),
    Synced(PathBuf),
    Renamed(PathBuf, PathBuf),
    Removed(PathBuf),
}

/// How a run ended.
#[derive(Debug)]
pub struct End {
    /// The exit code; `None` if a signal ended the process.
    pub code: Option<i32>,
    /// The calls that the fault changed, in words.
    pub changed: Vec<String>,
    /// How many calls of the kinds there were.
    pub calls: usize,
    /// What was done below the root, in order.
    pub events: Vec<Event>,
    pub stdout: String,
    pub stderr: String,
}

/// The kind of a call with these registers. Calls on the standard streams have none.
fn kind(regs: &user_regs_struct) -> Option<Kind> {
    let is_stream = regs.rdi <= 2;
    Some(match regs.orig_rax.cast_signed() {
        libc::SYS_read | libc::SYS_pread64 if !is_stream => Kind::Read,
        libc::SYS_write | libc::SYS_pwrite64 if !is_stream => Kind::Write,
        libc::SYS_ftruncate | libc::SYS_fallocate | libc::SYS_copy_file_range => Kind::Write,
        libc::SYS_sendfile => Kind::Write,
        libc::SYS_fsync | libc::SYS_fdatasync => Kind::Sync,
        libc::SYS_open | libc::SYS_openat | libc::SYS_getdents64 => Kind::Open,
        libc::SYS_rename | libc::SYS_renameat | libc::SYS_renameat2 => Kind::Name,
        libc::SYS_link | libc::SYS_linkat | libc::SYS_symlink | libc::SYS_symlinkat => Kind::Name,
        libc::SYS_unlink | libc::SYS_unlinkat | libc::SYS_rmdir => Kind::Name,
        libc::SYS_mkdir | libc::SYS_mkdirat | libc::SYS_chmod | libc::SYS_fchmod => Kind::Name,
        libc::SYS_clone | libc::SYS_clone3 => Kind::Thread,
        libc::SYS_statfs | libc::SYS_fstatfs => Kind::Space,
        libc::SYS_flock => Kind::Lock,
        _ => return None,
    })
}

/// The register with the length of a call that may do less than it is asked for.
fn length(regs: &mut user_regs_struct) -> Option<&mut u64> {
    match regs.orig_rax.cast_signed() {
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_write | libc::SYS_pwrite64 => {
            Some(&mut regs.rdx)
        }
        libc::SYS_copy_file_range => Some(&mut regs.r8),
        libc::SYS_sendfile => Some(&mut regs.r10),
        _ => None,
    }
}

/// Whether a call names a path below `root`, as its first argument or after a directory.
fn names_root(pid: Pid, regs: &user_regs_struct, root: &Path) -> bool {
    let root = root.as_os_str().as_bytes();
    let is_root = |address: u64| {
        let words = (0..root.len().div_ceil(8)).map_while(|no| {
            let at = address.checked_add(8 * no as u64)?;
            ptrace::read(pid, at as ptrace::AddressType).ok()
        });
        let bytes: Vec<u8> = words.flat_map(i64::to_le_bytes).collect();
        bytes.starts_with(root)
    };
    match regs.orig_rax.cast_signed() {
        libc::SYS_openat | libc::SYS_statx | libc::SYS_newfstatat => is_root(regs.rsi),
        libc::SYS_open | libc::SYS_stat | libc::SYS_readlink => is_root(regs.rdi),
        _ => false,
    }
}

/// The path of an open file, or that of a name in an open directory, which is at an address.
fn path_of(pid: Pid, fd: u64, name: Option<u64>) -> Option<PathBuf> {
    let link = match fd as i32 {
        libc::AT_FDCWD => format!("/proc/{pid}/cwd"),
        fd => format!("/proc/{pid}/fd/{fd}"),
    };
    let directory = std::fs::read_link(link).ok()?;
    let Some(name) = name else {
        return Some(directory);
    };
    let mut bytes = Vec::new();
    while !bytes.contains(&0) {
        let at = name + bytes.len() as u64;
        let word = ptrace::read(pid, at as ptrace::AddressType).ok()?;
        bytes.extend(word.to_le_bytes());
    }
    let end = bytes.iter().position(|b| *b == 0)?;
    Some(directory.join(OsStr::from_bytes(&bytes[..end])))
}

/// Runs `amn` with `arguments`. Calls count from the first one that names a path below `root`: what
/// comes before belongs to the loader and to the standard library.
#[expect(clippy::zombie_processes, reason = "`Tracer::trace` waits for it")]
pub fn run(root: &Path, arguments: &[&OsStr], plan: Plan) -> End {
    let log = tempfile::NamedTempFile::new().unwrap();
    let out = tempfile::NamedTempFile::new().unwrap();
    // A tracer attaches to a process that exists, so the process waits until that is done.
    let child = Command::new("sh")
        .args(["-c", "kill -STOP $$; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_amn"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(out.reopen().unwrap())
        .stderr(log.reopen().unwrap())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert!(matches!(stopped, WaitStatus::Stopped(..)), "{stopped:?}");
    ptrace::seize(
        pid,
        Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL,
    )
    .unwrap();
    kill(pid, Signal::SIGCONT).unwrap();
    let mut tracer = Tracer {
        main: pid,
        root: root.to_path_buf(),
        plan,
        has_executed: false,
        is_counting: false,
        calls: 0,
        changed: vec![],
        pending: vec![],
        events: vec![],
    };
    let code = tracer.trace();
    let [stdout, stderr] = [&out, &log].map(|file| std::fs::read_to_string(file.path()).unwrap());
    let Tracer { changed, calls, events, .. } = tracer;
    End { code, changed, calls, events, stdout, stderr }
}

struct Tracer {
    main: Pid,
    root: PathBuf,
    plan: Plan,
    has_executed: bool,
    is_counting: bool,
    /// Calls of the plan's kinds so far.
    calls: usize,
    changed: Vec<String>,
    /// Threads whose current call was changed, with the registers at its entry.
    pending: Vec<(Pid, user_regs_struct)>,
    events: Vec<Event>,
}

impl Tracer {
    /// Follows the process to its end, and returns its exit code.
    fn trace(&mut self) -> Option<i32> {
        // Other threads of this program have children of their own, which are not to be waited for.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        loop {
            let status = waitpid(None, Some(flags)).unwrap();
            let (pid, signal) = match status {
                WaitStatus::Exited(pid, code) if pid == self.main => return Some(code),
                WaitStatus::Signaled(pid, ..) if pid == self.main => return None,
                WaitStatus::PtraceSyscall(pid) => {
                    self.at_call(pid);
                    (pid, None)
                }
                WaitStatus::PtraceEvent(pid, _, event) => {
                    self.has_executed |= event == libc::PTRACE_EVENT_EXEC;
                    (pid, None)
                }
                WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
                _ => continue,
            };
            // A thread that is gone by now says so to the next wait.
            let _ = ptrace::syscall(pid, signal);
        }
    }

    /// Handles the entry into a system call, or the return from one.
    fn at_call(&mut self, pid: Pid) {
        let Ok(info) = ptrace::syscall_info(pid) else {
            return;
        };
        if info.op == libc::PTRACE_SYSCALL_INFO_EXIT {
            let pending = self.pending.iter().position(|(thread, _)| *thread == pid);
            if let Some(no) = pending {
                let (_, before) = self.pending.swap_remove(no);
                self.after(pid, before);
            }
            return;
        }
        let Ok(regs) = ptrace::getregs(pid) else {
            return;
        };
        self.is_counting |= self.has_executed && names_root(pid, &regs, &self.root);
        if self.is_counting {
            self.note(pid, &regs);
        }
        let kinds = self.plan.kinds;
        if !self.is_counting || !kind(&regs).is_some_and(|kind| kinds.contains(&kind)) {
            return;
        }
        let mut changed = regs;
        if self.plan.fault == Fault::Short {
            match length(&mut changed) {
                Some(len) if *len > 1 => *len /= 2,
                _ => return,
            }
        } else if !matches!(self.plan.fault, Fault::Free(_)) {
            // No call has this number, so the kernel does nothing.
            changed.orig_rax = u64::MAX;
        }
        self.calls += 1;
        if self.plan.at.is_some_and(|at| at != self.calls) {
            return;
        }
        let what = format!("call {} of thread {pid}, fd {:#x}", regs.orig_rax, regs.rdi);
        self.changed.push(what);
        ptrace::setregs(pid, changed).unwrap();
        if self.plan.fault == Fault::Kill {
            kill(self.main, Signal::SIGKILL).unwrap();
        } else {
            self.pending.push((pid, regs));
        }
    }

    /// Records what a call that begins is going to do to files below the root.
    fn note(&mut self, pid: Pid, regs: &user_regs_struct) {
        let here = libc::AT_FDCWD.cast_unsigned().into();
        let file = |fd| path_of(pid, fd, None);
        let named = |fd, name| path_of(pid, fd, Some(name));
        let (mut changed, mut created, mut removed) = (None, None, None);
        match regs.orig_rax.cast_signed() {
            libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_ftruncate | libc::SYS_fallocate => {
                changed = file(regs.rdi);
            }
            libc::SYS_sendfile => changed = file(regs.rdi),
            libc::SYS_copy_file_range => changed = file(regs.rdx),
            libc::SYS_openat if regs.rdx & libc::O_CREAT as u64 != 0 => {
                created = named(regs.rdi, regs.rsi).filter(|path| !path.exists());
            }
            libc::SYS_mkdir => created = named(here, regs.rdi),
            libc::SYS_mkdirat => created = named(regs.rdi, regs.rsi),
            libc::SYS_unlink | libc::SYS_rmdir => removed = named(here, regs.rdi),
            libc::SYS_unlinkat => removed = named(regs.rdi, regs.rsi),
            libc::SYS_fsync | libc::SYS_fdatasync => {
                self.events.extend(file(regs.rdi).map(Event::Synced));
            }
            libc::SYS_rename => self.renamed([named(here, regs.rdi), named(here, regs.rsi)]),
            libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => {
                self.renamed([named(regs.rdi, regs.rsi), named(regs.rdx, regs.r10)]);
            }
            _ => {}
        }
        let is_below = |path: &PathBuf| path.starts_with(&self.root);
        self.events
            .extend(changed.filter(is_below).map(Event::Changed));
        self.events
            .extend(created.filter(is_below).map(Event::Created));
        self.events.extend(removed.map(Event::Removed));
    }

    fn renamed(&mut self, paths: [Option<PathBuf>; 2]) {
        if let [Some(from), Some(to)] = paths {
            self.events.push(Event::Renamed(from, to));
        }
    }

    /// Ends a changed call: its result is the error, and the other registers are what the program
    /// left in them.
    fn after(&self, pid: Pid, before: user_regs_struct) {
        let Ok(mut regs) = ptrace::getregs(pid) else {
            return;
        };
        (regs.rdx, regs.r8, regs.r10) = (before.rdx, before.r8, before.r10);
        match self.plan.fault {
            Fault::Error(errno) => regs.rax = (-i64::from(errno as i32)).cast_unsigned(),
            Fault::Free(bytes) => {
                // `struct statfs` in words: free blocks for users, and their size.
                for (word, value) in [(4, bytes), (9, 1)] {
                    let at = (before.rsi + 8 * word) as ptrace::AddressType;
                    ptrace::write(pid, at, value.cast_signed()).unwrap();
                }
            }
            Fault::Short | Fault::Kill => {}
        }
        let _ = ptrace::setregs(pid, regs);
    }
}
