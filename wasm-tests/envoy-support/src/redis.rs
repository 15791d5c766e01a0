//! A Redis server of the test's own.

use std::env;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::envoy::{Folder, eventually, watchdog};
use crate::find::skip;

/// The server that the distribution installs; it stands on the `PATH`.
const SERVER: &str = "redis-server";

/// Whether a test must be skipped because there is no Redis. Says so on stderr.
///
/// # Panics
///
/// When there is none and `TIDEGATE_REQUIRE` lists `redis`: there a skip is a
/// failure.
pub fn redis_missing() -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|dir| dir.join(SERVER).is_file());
    !found && skip("redis", &format!("no {SERVER} on the PATH"))
}

/// A running Redis with nothing in it, on a socket file. It ends, and its data
/// goes, when this is dropped or when the process that started it dies.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    watchdog: Option<Child>,
    folder: Folder,
}

impl Redis {
    /// Starts one and waits until it answers.
    pub fn start() -> Result<Self, String> {
        let folder = Folder::new()?;
        let child = Command::new(SERVER)
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .arg("--unixsocket")
            .arg(socket(&folder))
            .arg("--dir")
            .arg(&folder.0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("{SERVER} did not start: {e}"))?;
        let watchdog = watchdog(child.id(), &folder.0);
        let redis = Self { child, watchdog, folder };
        eventually("Redis to answer", || ping(&socket(&redis.folder)).ok())?;
        Ok(redis)
    }

    /// Where it listens, as clients of Redis write it: `redis+unix://…`.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", socket(&self.folder).display())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        for process in self.watchdog.iter_mut().chain([&mut self.child]) {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

fn socket(folder: &Folder) -> PathBuf {
    folder.0.join("redis")
}

fn ping(socket: &Path) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"PING\r\n")?;
    stream.read_exact(&mut [0; b"+PONG\r\n".len()])
}
