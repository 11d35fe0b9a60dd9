//! NBD servers. A server is stopped when its guard is dropped.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, mpsc};

use ironmap::device::nbd::{Address, Nbd};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::command::find;
use crate::common::image::scratch_in;

/// A server that listens on a socket in a separate directory. The server exports the file `disk` in this directory.
pub(crate) struct Server {
    dir: TempDir,
    program: String,
    args: Vec<String>,
    child: Option<Child>,
}

impl Server {
    /// Starts a server program for a disk with this content. `SOCKET`, `DISK` and `DIR` in `args` are replaced.
    pub(crate) fn start(program: &str, args: &str, disk: &[u8]) -> Self {
        Self::with_file(program, args, disk, "")
    }

    /// Starts a server program with an additional file `DIR/file` with this content.
    pub(crate) fn with_file(program: &str, args: &str, disk: &[u8], file: &str) -> Self {
        let dir = scratch_in(Path::new("/dev/shm"));
        std::fs::write(dir.path().join("disk"), disk).unwrap();
        let mut server = Self { dir, program: program.to_owned(), args: Vec::new(), child: None };
        server.args = args.split_whitespace().map(|arg| server.filled_in(arg)).collect();
        let path = server.path("file");
        std::fs::write(&path, server.filled_in(file)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        server.restart();
        server
    }

    /// Starts nbdkit with these filters and this plugin.
    pub(crate) fn nbdkit(args: &str, disk: &[u8]) -> Self {
        Self::start("nbdkit", &format!("-f --exit-with-parent -U SOCKET {args}"), disk)
    }

    fn filled_in(&self, arg: &str) -> String {
        let path = |path: PathBuf| path.display().to_string();
        arg.replace("SOCKET", &path(self.socket()))
            .replace("DISK", &path(self.disk()))
            .replace("DIR", &path(self.dir.path().to_owned()))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.path("disk")
    }

    /// The address of the export. The query part of the address consists of the path of the socket and `query`.
    pub(crate) fn address(&self, query: &str) -> Address {
        format!("nbd+unix:///?socket={}{query}", self.socket().display()).parse().unwrap()
    }

    pub(crate) fn open(&self, write: bool) -> ironmap::Result<Nbd> {
        Nbd::open(&self.address(""), write)
    }

    /// Starts the server again, and waits until it listens.
    pub(crate) fn restart(&mut self) {
        let _ = std::fs::remove_file(self.socket());
        let program = find(&self.program).unwrap();
        let log = std::fs::File::create(self.path("log")).unwrap();
        let mut command = Command::new(program);
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut child = spawn(command);
        while UnixStream::connect(self.socket()).is_err() {
            let ended = child.try_wait().unwrap();
            let log = || std::fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(ended.is_none(), "{} {:?}: {}", self.program, self.args, log());
            std::thread::yield_now();
        }
        self.child = Some(child);
    }

    /// Stops all threads of the server until it gets SIGCONT.
    pub(crate) fn suspend(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.as_ref().unwrap().id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            stat.is_ok_and(|stat| stat.rsplit_once(')').unwrap().1.starts_with(" T"))
        };
        while !std::fs::read_dir(&tasks).unwrap().all(is_stopped) {
            std::thread::yield_now();
        }
    }

    /// The number of the server's open sockets: those of connections, and those that listen.
    #[cfg(feature = "tls")]
    pub(crate) fn sockets(&self) -> usize {
        let dir = format!("/proc/{}/fd", self.child.as_ref().unwrap().id());
        let is_socket = |path: PathBuf| path.to_string_lossy().contains("socket:");
        let fds = std::fs::read_dir(dir).unwrap().flatten();
        fds.filter(|fd| fd.path().read_link().is_ok_and(is_socket)).count()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().unwrap();
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    /// Kills the server. It loses the data in its memory.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// If the server has ended, restarts it. nbdkit 1.32 sometimes aborts when a connection is cut (`raw_send_socket`: `sock >= 0`).
    pub(crate) fn revive(&mut self) {
        if self.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some()) {
            self.restart();
        }
    }

    /// Stops the server gracefully.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        self.child.take().unwrap().wait().unwrap();
    }
}

/// Starts a program from a thread that runs until the end of the tests. With `--exit-with-parent`, a server ends when the thread that
/// started it ends.
fn spawn(command: Command) -> Child {
    type Order = (Command, mpsc::Sender<Child>);
    static ORDERS: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (orders, received) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in received {
                reply.send(command.spawn().unwrap()).unwrap();
            }
        });
        Mutex::new(orders)
    });
    let (reply, child) = mpsc::channel();
    orders.lock().unwrap().send((command, reply)).unwrap();
    child.recv().unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
            eprintln!("{} {:?}:\n{log}", self.program, self.args);
        }
        self.kill();
    }
}
