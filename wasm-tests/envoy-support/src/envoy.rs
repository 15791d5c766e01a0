//! Starting Envoy, asking it, and ending it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::find::{envoy_binary, wasm_file};
use crate::http::Request;
use crate::template::{ENVOY_YAML, Template};

/// How long anything may take that a test waits for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks every few milliseconds until there is an answer.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> Result<T, String> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return Ok(answer);
        }
        if Instant::now() > end {
            return Err(format!("waited {PATIENCE:?} in vain: {what}"));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// What an [`Envoy`] shall be started with.
///
/// Changes to the file are made in the order in which they are asked for; the
/// first one that does not find its place exactly once is the error of
/// [`Builder::start`].
#[derive(Debug)]
pub struct Builder {
    template: Result<Template, String>,
    wasm: Option<PathBuf>,
    /// Holds `wasm` until Envoy has read it.
    folder: Option<Folder>,
    workers: u32,
    log_level: String,
}

impl Builder {
    /// Another file than `envoy/envoy.yaml`. Drops all changes made so far.
    #[must_use]
    pub fn template(mut self, text: &str) -> Self {
        self.template = Ok(Template::new(text));
        self
    }

    /// Changes the text.
    #[must_use]
    pub fn edit(mut self, change: impl FnOnce(&mut Template) -> Result<(), String>) -> Self {
        self.template = self.template.and_then(|mut template| {
            change(&mut template)?;
            Ok(template)
        });
        self
    }

    /// Puts `with` in the place of `token`, which must be there exactly once.
    #[must_use]
    pub fn replace(self, token: &str, with: &str) -> Self {
        self.edit(|t| t.replace(token, with))
    }

    /// The ports of the two replicas of the short pool and of the long one.
    #[must_use]
    pub fn backends(self, short: [u16; 2], long: [u16; 2]) -> Self {
        let ([a, b], [c, d]) = (short, long);
        self.edit(|t| {
            t.port(18001, a)?;
            t.port(18002, b)?;
            t.port(18101, c)?;
            t.port(18102, d)
        })
    }

    /// Another filter than [`wasm_file`].
    #[must_use]
    pub fn wasm(mut self, path: &Path) -> Self {
        self.wasm = Some(path.to_path_buf());
        self
    }

    /// Another filter, given by its bytes; see [`trap_at`](crate::trap_at).
    #[must_use]
    pub fn module(mut self, wasm: &[u8]) -> Self {
        let written = Folder::new().and_then(|folder| {
            self.wasm = Some(folder.write("module.wasm", wasm)?);
            Ok(folder)
        });
        match written {
            Ok(folder) => self.folder = Some(folder),
            Err(e) => self.template = Err(e),
        }
        self
    }

    /// The filter's configuration, in JSON.
    #[must_use]
    pub fn configuration(self, json: &str) -> Self {
        self.edit(|t| t.configuration(json))
    }

    /// How many workers (default 1). With more, see [`Builder::exact_balance`].
    #[must_use]
    pub fn workers(mut self, count: u32) -> Self {
        self.workers = count;
        self
    }

    /// Spreads connections evenly over the workers. Without it the kernel
    /// chooses, and may give them all to one.
    #[must_use]
    pub fn exact_balance(self) -> Self {
        self.edit(|t| {
            t.insert_after("port_value: 10000 ", "connection_balance_config: { exact_balance: {} }")
        })
    }

    /// How often the replicas' health is asked for, such as `0.1s`; this is how
    /// long the death or return of a replica takes to be seen.
    #[must_use]
    pub fn health_interval(self, interval: &str) -> Self {
        self.edit(|t| {
            t.replace(" interval: 5s", &format!(" interval: {interval}"))?;
            t.replace("no_traffic_interval: 5s", &format!("no_traffic_interval: {interval}"))
        })
    }

    /// `info` (the default), `debug`, `warn`, ….
    #[must_use]
    pub fn log_level(mut self, level: &str) -> Self {
        self.log_level = level.into();
        self
    }

    /// The configuration as Envoy gets it: listener and admin on free ports.
    pub fn config(&self) -> Result<String, String> {
        let mut template = self.template.clone()?;
        let wasm = match &self.wasm {
            Some(path) => path.clone(),
            None => wasm_file()?,
        };
        template.replace("target/tidegate.wasm", &wasm.to_string_lossy())?;
        template.replace("0.0.0.0, port_value: 10000 ", "127.0.0.1, port_value: 0 ")?;
        template.port(9901, 0)?;
        Ok(template.text().to_string())
    }

    /// Lets Envoy check the configuration without starting: it loads the filter
    /// and configures it. The error is what Envoy printed.
    pub fn validate(&self) -> Result<(), String> {
        Envoy::validate(&self.config()?)
    }

    /// Starts Envoy and waits until it serves.
    pub fn start(self) -> Result<Envoy, String> {
        self.start_unless(&AtomicBool::new(false))
    }

    /// The same, but gives up within milliseconds when `stop` becomes true;
    /// then no Envoy is left.
    pub fn start_unless(self, stop: &AtomicBool) -> Result<Envoy, String> {
        Envoy::start(&self.config()?, self.workers, &self.log_level, stop)
    }
}

/// A running Envoy. It ends when this is dropped, and when the process that
/// started it dies in whatever way.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    watchdog: Option<Child>,
    _folder: Folder,
    access_log: Lines,
    log: Lines,
    port: u16,
    admin_port: u16,
}

impl Envoy {
    /// Starts from `envoy/envoy.yaml`, one worker.
    pub fn builder() -> Builder {
        let template = Ok(Template::new(ENVOY_YAML));
        Builder { template, wasm: None, folder: None, workers: 1, log_level: "info".into() }
    }

    /// Lets Envoy check a whole configuration without starting. The error is
    /// what Envoy printed.
    pub fn validate(config: &str) -> Result<(), String> {
        let folder = Folder::new()?;
        let file = folder.write("envoy.yaml", config)?;
        let output = Command::new(envoy_binary()?)
            .args(["--mode", "validate", "--log-level", "warning", "-c"])
            .arg(file)
            .output()
            .map_err(|e| format!("Envoy did not start: {e}"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Starts an Envoy that takes HTTP/1.1 and sends everything on to `port`
    /// over HTTP/2: an HTTP/2 client that does flow control as clients do.
    pub fn http2_front(port: u16) -> Result<Self, String> {
        let mut template = Template::new(include_str!("http2_front.yaml"));
        template.port(18001, port)?;
        Self::start(template.text(), 1, "warning", &AtomicBool::new(false))
    }

    fn start(
        config: &str,
        workers: u32,
        log_level: &str,
        stop: &AtomicBool,
    ) -> Result<Self, String> {
        let folder = Folder::new()?;
        let file = folder.write("envoy.yaml", config)?;
        let admin_file = folder.0.join("admin");
        let mut child = Command::new(envoy_binary()?)
            .arg("-c")
            .arg(file)
            .arg("--admin-address-path")
            .arg(&admin_file)
            .args(["--concurrency", &workers.to_string(), "--log-level", log_level])
            // Several can run side by side; access logs come at once.
            .args(["--disable-hot-restart", "--file-flush-interval-msec", "20"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A terminal's Ctrl-C is for us; we end Envoy when we are done with it.
            .process_group(0)
            .spawn()
            .map_err(|e| format!("Envoy did not start: {e}"))?;
        let (access_log, log) = (Lines::of(child.stdout.take()), Lines::of(child.stderr.take()));
        let watchdog = watchdog(child.id(), &folder.0);
        let mut envoy =
            Self { child, watchdog, _folder: folder, access_log, log, port: 0, admin_port: 0 };
        envoy
            .wait_until_ready(&admin_file, stop)
            .map_err(|e| format!("{e}\n{}", envoy.log.trouble()))?;
        Ok(envoy)
    }

    fn wait_until_ready(&mut self, admin_file: &Path, stop: &AtomicBool) -> Result<(), String> {
        let ready = eventually("Envoy to serve", || {
            if stop.load(Ordering::Relaxed) {
                return Some(Err("stopped while Envoy started".into()));
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(Err(format!("Envoy ended at its start: {status}")));
            }
            let address = fs::read_to_string(admin_file).ok()?;
            self.admin_port = address.trim().rsplit(':').next()?.parse().ok()?;
            (self.admin("/ready").ok()?.trim() == "LIVE").then_some(Ok(()))
        })?;
        ready?;
        let listeners = self.admin_json("/listeners?format=json")?;
        self.port = listeners
            .pointer("/listener_statuses/0/local_address/socket_address/port_value")
            .and_then(Value::as_u64)
            .and_then(|port| u16::try_from(port).ok())
            .ok_or_else(|| format!("no listener in {listeners}"))?;
        Ok(())
    }

    /// The port of the listener.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where clients go: `http://127.0.0.1:…`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The admin page: `http://127.0.0.1:…`.
    pub fn admin_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.admin_port)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the admin page says to a GET.
    pub fn admin(&self, path: &str) -> Result<String, String> {
        let answer = Request::get(path).with("connection", "close").send(self.admin_port)?;
        match answer.status {
            200 => Ok(answer.text()),
            status => Err(format!("{path}: {status} {}", answer.text())),
        }
    }

    fn admin_json(&self, path: &str) -> Result<Value, String> {
        serde_json::from_str(&self.admin(path)?).map_err(|e| format!("{path}: {e}"))
    }

    /// All counters and gauges.
    pub fn stats(&self) -> Result<BTreeMap<String, u64>, String> {
        let stats = self.admin_json("/stats?format=json")?;
        let list = stats.get("stats").and_then(Value::as_array).ok_or("no stats")?;
        let number = |one: &Value| {
            Some((one.get("name")?.as_str()?.to_string(), one.get("value")?.as_u64()?))
        };
        // Histograms stand in the same list under another form.
        Ok(list.iter().filter_map(number).collect())
    }

    /// One counter or gauge; it is an error when Envoy has none of this name.
    pub fn counter(&self, name: &str) -> Result<u64, String> {
        let stats = self.stats()?;
        stats.get(name).copied().ok_or_else(|| format!("Envoy has no counter {name}"))
    }

    /// How many connections each worker took so far.
    pub fn worker_connections(&self) -> Result<Vec<u64>, String> {
        let stats = self.stats()?;
        let mine = |name: &str| {
            name.starts_with("listener.127.0.0.1")
                && name.contains(".worker_")
                && name.ends_with(".downstream_cx_total")
        };
        Ok(stats.into_iter().filter(|(name, _)| mine(name)).map(|(_, count)| count).collect())
    }

    /// The metrics as Prometheus reads them. Histograms follow within
    /// `stats_flush_interval` (5 s).
    pub fn prometheus(&self) -> Result<String, String> {
        self.admin("/stats/prometheus")
    }

    /// The access log so far, a JSON object a line.
    pub fn access_log(&self) -> Vec<String> {
        self.access_log.all()
    }

    /// Waits for this many lines of access log, and reads them.
    pub fn access_log_of(&self, count: usize) -> Result<Vec<Value>, String> {
        let lines = eventually("the access log", || {
            Some(self.access_log()).filter(|lines| lines.len() >= count)
        })?;
        lines.iter().map(|l| serde_json::from_str(l).map_err(|e| format!("{e}: {l}"))).collect()
    }

    /// Envoy's own log so far.
    pub fn log(&self) -> String {
        self.log.all().join("\n")
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // The watchdog first: it must not outlive the id that it would kill.
        for process in self.watchdog.iter_mut().chain([&mut self.child]) {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

/// Kills the process and removes the folder when we die without running `drop`:
/// then the pipe that only we hold ends.
pub(crate) fn watchdog(pid: u32, folder: &Path) -> Option<Child> {
    Command::new("sh")
        .args(["-c", "read -r _; kill -9 \"$0\"; rm -rf -- \"$1\"", &pid.to_string()])
        .arg(folder)
        // What ends our whole group, such as a terminal's hang-up, must not end
        // the watchdog before it has done its work.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()
}

/// The lines that a process has written so far.
#[derive(Debug, Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Self {
        let lines = Self::default();
        let Some(pipe) = pipe else { return lines };
        let copy = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n') {
                let Ok(line) = line else { return };
                let line = String::from_utf8_lossy(&line).into_owned();
                copy.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        lines
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The last lines that are more than information.
    fn trouble(&self) -> String {
        let all = self.all();
        let lines: Vec<&str> =
            all.iter().map(String::as_str).filter(|line| !line.contains("][info][")).collect();
        lines.get(lines.len().saturating_sub(20)..).unwrap_or_default().join("\n")
    }
}

/// A folder of our own that goes when it is dropped.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-envoy-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self(path))
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf, String> {
        let path = self.0.join(name);
        fs::write(&path, content).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names the folder when this test's binary runs as its own victim.
    const VICTIM: &str = "TIDEGATE_WATCHDOG_VICTIM";

    /// Starts what stands for Envoy, as deaf to a hang-up as Envoy is, and waits
    /// for its death.
    fn victim(folder: &str) {
        let mut deaf = Command::new("sh")
            .args(["-c", "trap '' HUP; echo >\"$0/deaf\"; exec sleep 60", folder])
            .spawn()
            .unwrap();
        let mut watchdog = watchdog(deaf.id(), Path::new(folder)).unwrap();
        fs::write(Path::new(folder).join("pid"), deaf.id().to_string()).unwrap();
        deaf.wait().unwrap();
        watchdog.kill().unwrap();
        watchdog.wait().unwrap();
    }

    #[test]
    fn a_hang_up_of_the_whole_group_leaves_nothing() {
        if let Some(folder) = std::env::var_os(VICTIM) {
            return victim(&folder.to_string_lossy());
        }
        let folder = Folder::new().unwrap();
        // Under nohup the tests themselves ignore hang-ups, and pass that on.
        let mut us = Command::new("env")
            .arg("--default-signal=HUP")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "envoy::tests::a_hang_up_of_the_whole_group_leaves_nothing"])
            .env(VICTIM, &folder.0)
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let pid = eventually("the victim to be ready", || {
            folder.0.join("deaf").exists().then_some(())?;
            fs::read_to_string(folder.0.join("pid")).ok().filter(|pid| !pid.is_empty())
        })
        .unwrap();
        let kill = |args: &[&str]| {
            let quiet = Command::new("kill").args(args).stderr(Stdio::null()).status();
            quiet.is_ok_and(|status| status.success())
        };
        assert!(kill(&["-0", &pid]));
        assert!(kill(&["-HUP", "--", &format!("-{}", us.id())]));
        assert!(!us.wait().unwrap().success());
        eventually("the folder to go", || (!folder.0.exists()).then_some(())).unwrap();
        // A process that nobody waits for may stay as a name only.
        eventually("the process to end", || {
            let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            (!kill(&["-0", &pid]) || state.contains(") Z ")).then_some(())
        })
        .unwrap();
    }

    #[test]
    fn a_start_can_be_called_off() {
        if crate::missing() {
            return;
        }
        let start = Instant::now();
        let stopped = Envoy::builder().start_unless(&AtomicBool::new(true));
        assert!(stopped.unwrap_err().starts_with("stopped while Envoy started"));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}
