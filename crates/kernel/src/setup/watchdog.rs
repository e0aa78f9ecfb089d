//! A process that undoes what a run has made, if Terrace is killed.
//!
//! The kernel bounds a run: by `memory.high`, by a limit with the killer switched off, or by processor
//! time. These bounds stay if Terrace is killed, and nobody raises them any more when a program waits
//! in vain. So a run has a second process, which is forked before anything is made. It holds the
//! reading end of a pipe whose writing end only Terrace has, and sleeps in a read of it. If that
//! returns without a word, Terrace is gone, and it
//!
//! 1. takes off all limits and brakes, unless somebody else keeps the group within its budget by
//!    then. The kernel closes a dying process's files one after the other, so it may hold the keeper's
//!    lock when its end of the pipe is closed already. The watchdog therefore tries until Terrace is
//!    gone for certain, and again whenever it looks at the program;
//! 2. has `terrace clean` undo what can be undone at once;
//! 3. waits until the program has ended, and has `terrace clean` undo the rest: the group, the
//!    device.
//!
//! The same at the end of a run that processes outlive: a daemon that was started, for example.
//!
//! It is a fork of a process that may have threads: it makes system calls only, with what was laid
//! out before, and allocates nothing. It shares its memory with Terrace for as long as neither
//! writes to it. Signals do not end it, but for SIGKILL, and it has a session of its own, so that who
//! kills a whole process group does not kill it.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use super::group::Group;

/// How often is looked whether the program has ended: at first, and at most. In ms.
const LOOKS: (i32, i32) = (20, 1_000);
/// How long until what could not be undone is tried again: at first, and at most. In ms.
const AGAIN: (i32, i32) = (500, 60_000);
/// How often it is tried once there is no group any more: a device may be somebody else's, too.
const TRIES: u32 = 20;
/// How long Terrace may take to be gone after its end of the pipe is, in ms: it closes its files by
/// then, and a process that was started by nobody else is soon told apart from one that lives.
const DYING: i32 = 5_000;
/// How long it may take to end when it is told to, and when it is killed, in ms.
const ENDING: (i32, i32) = (5_000, 1_000);

/// The process, as Terrace has it. Dropped in order it ends, and undoes nothing.
#[derive(Debug)]
pub struct Watchdog {
    process: libc::pid_t,
    /// A word on it is the order to end; its end is Terrace's.
    pipe: OwnedFd,
}

impl Watchdog {
    /// Starts it. `group` is the control group that the run is going to have, or has already;
    /// `clean` the command that undoes what belongs to nobody: the path of a program and its
    /// arguments, its name first.
    ///
    /// # Errors
    /// If there are no descriptors or processes left.
    pub fn start(group: Option<&Group>, clean: (&CStr, &[&CStr])) -> io::Result<Self> {
        Self::start_with(group, clean, DYING)
    }

    /// The same; Terrace may take so long to be gone.
    fn start_with(group: Option<&Group>, clean: (&CStr, &[&CStr]), dying: i32) -> io::Result<Self> {
        let (program, arguments) = clean;
        let arguments: Vec<*const libc::c_char> =
            arguments.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect();
        let path =
            |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
        let mut directory = None;
        let mut settings = Vec::new();
        if let Some(group) = group {
            directory = Some((path(group.directory())?, path(&group.directory().join(MEMBERS))?));
            for setting in group.unset() {
                settings.push((path(&setting.file)?, setting.text));
            }
        }
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let (reads, pipe) = pipe()?;
        let orders = Orders {
            terrace: std::process::id().cast_signed(),
            dying,
            pipe: reads.as_raw_fd(),
            null: null.as_raw_fd(),
            directory: directory.as_ref().map(|(at, members)| (at.as_c_str(), members.as_c_str())),
            settings: &settings,
            program,
            arguments: &arguments,
        };
        // SAFETY: the child makes system calls only, see `Orders::stand`, and never returns.
        match unsafe { libc::fork() } {
            0 => orders.stand(),
            process if process > 0 => Ok(Self { process, pipe }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Its number.
    pub fn process(&self) -> u32 {
        self.process.unsigned_abs()
    }

    /// Has it act now as if Terrace were gone, as it will be soon: processes of the run are left that
    /// need what was made.
    pub fn take_over(self) {
        let watchdog = ManuallyDrop::new(self);
        // SAFETY: the pipe is taken out once, and is not used again.
        drop(unsafe { ptr::read(&raw const watchdog.pipe) });
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // SAFETY: one byte that lives on, to a descriptor that is open. Somebody may have killed it;
        // SIGPIPE is ignored by Rust's runtime.
        unsafe { libc::write(self.pipe.as_raw_fd(), c"e".as_ptr().cast(), 1) };
        end(self.process, ENDING);
    }
}

/// The processes of a group.
const MEMBERS: &str = "cgroup.procs";

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: writes two numbers; the descriptors are ours.
    unsafe {
        match libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) {
            0 => Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Waits for a child's end; its status, or -1.
fn reap(process: libc::pid_t) -> libc::c_int {
    let mut status = 0;
    loop {
        // SAFETY: writes one number.
        if unsafe { libc::waitpid(process, &raw mut status, 0) } >= 0 {
            return status;
        }
        if errno() != libc::EINTR {
            return -1;
        }
    }
}

/// Waits for the end of a child that was told to end, and kills it if that takes too long: nobody
/// waits forever for one that was stopped.
fn end(process: libc::pid_t, (told, killed): (i32, i32)) {
    if has_ended(process, told) {
        return;
    }
    // SAFETY: a number; the process is a child that nobody has waited for, so it is still that one.
    unsafe { libc::kill(process, libc::SIGKILL) };
    has_ended(process, killed);
}

/// Waits so many ms for a child's end; whether it has come, or there is no such child.
fn has_ended(process: libc::pid_t, milliseconds: i32) -> bool {
    for _ in 0..milliseconds {
        // SAFETY: writes nothing.
        match unsafe { libc::waitpid(process, ptr::null_mut(), libc::WNOHANG) } {
            0 => sleep(1),
            n if n < 0 && errno() == libc::EINTR => {}
            _ => return true,
        }
    }
    false
}

fn errno() -> libc::c_int {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() }
}

fn sleep(milliseconds: i32) {
    // SAFETY: waits for nothing but the time.
    unsafe { libc::poll(ptr::null_mut(), 0, milliseconds) };
}

/// What the process has to do, laid out before it exists.
struct Orders<'a> {
    /// The process that is watched.
    terrace: libc::pid_t,
    /// How long it may take to be gone, in ms.
    dying: i32,
    pipe: RawFd,
    null: RawFd,
    /// The group's directory, and its list of processes.
    directory: Option<(&'a CStr, &'a CStr)>,
    /// What is written where to take limits off.
    settings: &'a [(CString, String)],
    program: &'a CStr,
    arguments: &'a [*const libc::c_char],
}

impl Orders<'_> {
    /// The process, from its begin to its end. Nothing in here allocates, takes a lock, or unwinds.
    fn stand(&self) -> ! {
        self.become_own();
        if !self.is_abandoned() {
            exit();
        }
        let mut is_free = self.await_terrace();
        let (mut again, mut tries) = (AGAIN.0, 0);
        loop {
            is_free = is_free || self.release();
            // What it made is nobody's only then: before, there is nothing to undo.
            let is_gone = self.terrace_is_gone();
            let is_done = self.clean();
            let is_there = self.group_is_there();
            if !is_there && (is_done && is_gone || tries > TRIES) {
                exit();
            }
            if is_there {
                self.await_end(&mut is_free);
            }
            // Groups below it, or swap that does not fit into memory: that may take a while.
            if tries > 0 {
                sleep(again);
                again = (again * 2).min(AGAIN.1);
            }
            tries += 1;
        }
    }

    /// Has nothing of Terrace's but the pipe: no terminal, no file, no signal, no directory.
    fn become_own(&self) {
        // SAFETY: system calls with numbers, with strings that live on, and with a set of signals
        // that is plain data.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut());
            libc::setsid();
            libc::prctl(libc::PR_SET_NAME, c"terrace-watch".as_ptr());
            libc::chdir(c"/".as_ptr());
            for standard in 0..3 {
                libc::dup2(self.null, standard);
            }
            // All others, the writing end of the pipe among them.
            let pipe = self.pipe.unsigned_abs();
            libc::syscall(libc::SYS_close_range, 3, pipe - 1, 0);
            if libc::syscall(libc::SYS_close_range, pipe + 1, libc::c_uint::MAX, 0) != 0 {
                // Before Linux 5.9: those that a process has without asking for more.
                (3..1024).filter(|&fd| fd != self.pipe).for_each(|fd| {
                    libc::close(fd);
                });
            }
        }
    }

    /// Waits for a word of Terrace's; whether it has ended without one.
    fn is_abandoned(&self) -> bool {
        let mut word = 0_u8;
        loop {
            // SAFETY: one byte.
            match unsafe { libc::read(self.pipe, (&raw mut word).cast(), 1) } {
                0 => return true,
                n if n > 0 => return false,
                // Nothing else can go wrong with a pipe.
                _ if errno() != libc::EINTR => return true,
                _ => {}
            }
        }
    }

    /// Whether Terrace has ended: only after all of its files are closed is a child somebody else's.
    fn terrace_is_gone(&self) -> bool {
        // SAFETY: takes nothing.
        unsafe { libc::getppid() != self.terrace }
    }

    /// Waits until Terrace is gone, which one that has only said that it will be may take a while
    /// for; takes limits and brakes off as soon as they are nobody's, and says whether they are.
    fn await_terrace(&self) -> bool {
        let mut is_free = false;
        for _ in 0..self.dying {
            let is_gone = self.terrace_is_gone();
            is_free = is_free || self.release();
            if is_gone {
                break;
            }
            sleep(1);
        }
        is_free
    }

    /// Takes limits and brakes off, unless another run keeps this group within its budget now, which
    /// has set its own. False if one does: it may end in turn.
    fn release(&self) -> bool {
        let Some((directory, _)) = self.directory else { return true };
        // SAFETY: system calls with numbers and with strings that live on.
        unsafe {
            let group = libc::open(directory.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            if group < 0 {
                // There may be descriptors again later.
                return errno() == libc::ENOENT;
            }
            // As `Group::keep`. One that comes now waits until it is done.
            let is_nobodys = libc::flock(group, libc::LOCK_EX | libc::LOCK_NB) == 0;
            if is_nobodys {
                for (file, text) in self.settings {
                    let file = libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                    if file >= 0 {
                        libc::write(file, text.as_ptr().cast(), text.len());
                        libc::close(file);
                    }
                }
            }
            libc::close(group);
            is_nobodys
        }
    }

    fn group_is_there(&self) -> bool {
        // SAFETY: a string that lives on.
        self.directory.is_some_and(|(at, _)| unsafe { libc::access(at.as_ptr(), libc::F_OK) } == 0)
    }

    /// Waits until no process is in the group. Limits that somebody kept go as soon as nobody does.
    fn await_end(&self, is_free: &mut bool) {
        let Some((_, members)) = self.directory else { return };
        let mut wait = LOOKS.0;
        loop {
            let mut first = 0_u8;
            // SAFETY: a string that lives on, a descriptor of ours, one byte.
            let read = unsafe {
                let file = libc::open(members.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                if file < 0 {
                    return;
                }
                let read = libc::read(file, (&raw mut first).cast(), 1);
                libc::close(file);
                read
            };
            if read <= 0 {
                return;
            }
            *is_free = *is_free || self.release();
            sleep(wait);
            wait = (wait * 2).min(LOOKS.1);
        }
    }

    /// Has the command undo what belongs to nobody; whether it has said that it could.
    fn clean(&self) -> bool {
        // SAFETY: the child makes system calls only, with what was laid out before the first fork.
        let process = unsafe {
            let process = libc::fork();
            if process == 0 {
                let mut none = std::mem::zeroed();
                libc::sigemptyset(&raw mut none);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
                libc::execv(self.program.as_ptr(), self.arguments.as_ptr());
                libc::_exit(127);
            }
            process
        };
        process > 0 && reap(process) == 0
    }
}

fn exit() -> ! {
    // SAFETY: nothing is run at its end.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    /// A group of version 1 that is a directory with limits, and a command that writes down that it was
    /// called.
    struct Bench {
        directory: tempfile::TempDir,
        group: Group,
        command: CString,
    }

    impl Bench {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let at = directory.path().join("group");
            fs::create_dir(&at).unwrap();
            fs::write(directory.path().join("memory.swappiness"), "60\n").unwrap();
            for file in FILES {
                fs::write(at.join(file), "0").unwrap();
            }
            let command = directory.path().join("clean");
            fs::write(&command, CLEAN).unwrap();
            fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
            let command = CString::new(command.as_os_str().as_bytes()).unwrap();
            Self { group: Group::at(&at).unwrap(), directory, command }
        }

        fn start(&self) -> Watchdog {
            Watchdog::start_with(Some(&self.group), self.clean(), DYING).unwrap()
        }

        fn clean(&self) -> (&CStr, &'static [&'static CStr]) {
            (&self.command, &[c"clean"])
        }

        /// The watchdog of a process that keeps the budget of the group, if there is one, and is killed.
        fn killed(&self, group: Option<&Group>) -> libc::pid_t {
            // So that it can be waited for here when its parent is gone.
            // SAFETY: takes numbers.
            unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
            let (reads, writes) = pipe().unwrap();
            // SAFETY: the child has the memory allocator (glibc makes it whole again), touches nothing
            // else that another thread may have held, and never returns.
            let terrace = unsafe { libc::fork() };
            if terrace == 0 {
                let begin = || {
                    let watchdog = Watchdog::start_with(group, self.clean(), DYING).ok()?;
                    let keeps = group.map(|group| group.keep().ok().flatten());
                    let process = watchdog.process.to_ne_bytes();
                    let (to, from) = (writes.as_raw_fd(), process.as_ptr().cast());
                    // SAFETY: bytes that live on, to a descriptor of ours.
                    unsafe { libc::write(to, from, process.len()) };
                    std::mem::forget((watchdog, keeps));
                    Some(())
                };
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(begin));
                // SAFETY: ends this process, whatever it holds.
                unsafe {
                    libc::kill(libc::getpid(), libc::SIGKILL);
                    libc::_exit(1)
                }
            }
            drop(writes);
            let mut process = [0; size_of::<libc::pid_t>()];
            std::io::Read::read_exact(&mut File::from(reads), &mut process).unwrap();
            reap(terrace);
            libc::pid_t::from_ne_bytes(process)
        }

        fn text(&self, file: &str) -> String {
            fs::read_to_string(self.directory.path().join(file)).unwrap_or_default()
        }

        fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
            for _ in 0..2000 {
                if is_so(self) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            panic!("not within 20 s: {what}");
        }
    }

    /// Removes the group once no process is in it.
    const CLEAN: &str = "#!/bin/sh\nat=\"${0%/*}\"\n\
        [ -s \"$at/group/cgroup.procs\" ] || rm -rf \"$at/group\"\necho called >>\"$at/calls\"\n";
    const FILES: [&str; 5] = [
        "memory.usage_in_bytes",
        "memory.limit_in_bytes",
        "memory.oom_control",
        "memory.swappiness",
        MEMBERS,
    ];

    #[test]
    fn after_a_kill_limits_go_at_once_and_the_rest_when_the_program_has_ended() {
        let bench = Bench::new();
        fs::write(bench.group.directory().join(MEMBERS), "4711\n").unwrap();
        let process = bench.killed(Some(&bench.group));

        bench.until("called", |bench| bench.text("calls") == "called\n");
        // It writes over what was there: the kernel's files hold no more than was written.
        assert!(bench.text("group/memory.limit_in_bytes").starts_with("-1"));
        assert!(bench.text("group/memory.oom_control").starts_with('0'));
        assert_eq!(bench.text("group/memory.swappiness"), "60", "as the one above it");

        // The program ends.
        fs::write(bench.group.directory().join(MEMBERS), "").unwrap();
        assert_eq!(reap(process), 0);
        assert!(!bench.group.directory().exists());
        assert_eq!(bench.text("calls"), "called\ncalled\n");
    }

    #[test]
    fn one_that_is_told_to_end_touches_nothing() {
        let bench = Bench::new();
        drop(bench.start());
        assert_eq!(bench.text("group/memory.limit_in_bytes"), "0");
        assert_eq!(bench.text("calls"), "");
    }

    /// A run that has joined the one that was killed keeps the budget from now on.
    #[test]
    fn limits_stay_while_somebody_keeps_the_budget_and_go_when_nobody_does() {
        let bench = Bench::new();
        let keeps = bench.group.keep().unwrap().expect("nobody else does");
        let process = bench.killed(Some(&bench.group));
        bench.until("called", |bench| !bench.text("calls").is_empty());
        assert_eq!(bench.text("group/memory.limit_in_bytes"), "0");
        drop(keeps);
        bench
            .until("no limit", |bench| bench.text("group/memory.limit_in_bytes").starts_with("-1"));
        fs::write(bench.group.directory().join(MEMBERS), "").unwrap();
        assert_eq!(reap(process), 0);
    }

    /// Files are closed one after the other when a process ends: its lock may go after its pipe.
    #[test]
    fn a_lock_that_goes_a_little_later_is_waited_for() {
        let bench = Bench::new();
        let keeps = bench.group.keep().unwrap().expect("nobody else does");
        // Terrace lives, as far as this one can see, and it waits the longest that it does.
        let watchdog = bench.start();
        let process = watchdog.process;
        watchdog.take_over();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(bench.text("group/memory.limit_in_bytes"), "0");
        drop(keeps);
        bench
            .until("no limit", |bench| bench.text("group/memory.limit_in_bytes").starts_with("-1"));
        end(process, (0, 5_000));
    }

    /// One that was stopped hears nothing.
    #[test]
    fn one_that_does_not_end_is_killed() {
        let bench = Bench::new();
        let watchdog = ManuallyDrop::new(bench.start());
        // SAFETY: numbers; a child that nobody has waited for.
        unsafe { libc::kill(watchdog.process, libc::SIGSTOP) };
        end(watchdog.process, (20, 20_000));
        assert_eq!(reap(watchdog.process), -1, "nothing is left to wait for");
    }

    /// A program that reads what Terrace writes would wait for its end otherwise.
    #[test]
    fn it_holds_nothing_of_terraces_but_its_pipe() {
        let bench = Bench::new();
        let (reads, writes) = pipe().unwrap();
        let watchdog = bench.start();
        let open = || {
            let mut open: Vec<_> = fs::read_dir(format!("/proc/{}/fd", watchdog.process()))
                .unwrap()
                .map(|entry| fs::read_link(entry.unwrap().path()).unwrap_or_default())
                .collect();
            open.sort();
            open
        };
        bench.until("four descriptors", |_| open().len() == 4);
        let open = open();
        assert!(open[..3].iter().all(|path| path == Path::new("/dev/null")), "{open:?}");
        assert_ne!(reads.as_raw_fd(), writes.as_raw_fd());
        let stat = fs::read_to_string(format!("/proc/{}/stat", watchdog.process())).unwrap();
        assert!(stat.contains("(terrace-watch)"), "{stat}");
    }

    #[test]
    fn without_a_group_it_only_cleans() {
        let bench = Bench::new();
        assert_eq!(reap(bench.killed(None)), 0);
        assert_eq!(bench.text("calls"), "called\n");
    }

    /// As long as Terrace lives, what it made is in use, and `clean` leaves it alone: once is not
    /// enough then.
    #[test]
    fn it_cleans_again_while_terrace_is_not_gone() {
        let bench = Bench::new();
        let watchdog = Watchdog::start_with(None, bench.clean(), 1).unwrap();
        let process = watchdog.process;
        watchdog.take_over();
        bench.until("called again", |bench| bench.text("calls").starts_with("called\ncalled\n"));
        end(process, (0, 5_000));
    }
}
