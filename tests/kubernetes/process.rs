//! A process that never outlives the test that started it.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context as _, Result};

/// Runs `$@` until it ends, or until a line comes on standard input, or until that ends: the kernel closes it when the test
/// ends, however it ends; then nobody else removes the folder. (A signal at the parent's death would follow the thread that
/// started the process, not the test. A signal to the test's whole group would end this before it can end the program: so it is in a
/// group of its own.)
const GUARD: &str = r#"exec 3<&0
folder=$1; shift
"$@" 3<&- </dev/null & child=$!
{ read -r _ <&3 || { trap '' TERM; rest=$folder; }; kill -9 "$child"; [ -z "${rest-}" ] || { sleep 1; rm -rf "$rest"; }; } 2>/dev/null & watch=$!
wait "$child"; code=$?
kill "$watch" 2>/dev/null
exit "$code""#;

/// How much garbage a program in Go may keep, unless the environment says so: collecting it took a quarter of an API server's time. The
/// limit is for the small clusters of tests: what needs more than that would do nothing but collect.
const GARBAGE: [(&str, &str); 2] = [("GOGC", "400"), ("GOMEMLIMIT", "600MiB")];

/// A running process, killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    guard: Child,
    pipe: Option<ChildStdin>,
}

impl Process {
    /// Starts a program with its output in a file; the folder is removed if this process dies without a word.
    pub(crate) fn start(program: &Path, arguments: &[String], folder: &Path, log: &Path) -> Result<Self> {
        let name = program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        // One that is started again goes on in the same file.
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("log of {name}"))?;
        let mut guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(folder)
            .arg(program)
            .args(arguments)
            .envs(
                GARBAGE
                    .into_iter()
                    .filter(|(name, _)| std::env::var_os(name).is_none()),
            )
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start of {name}"))?;
        let pipe = guard.stdin.take();
        Ok(Self {
            name,
            log: log.to_owned(),
            guard,
            pipe,
        })
    }

    /// Name of the program.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The program's process, once it runs.
    pub(crate) fn id(&self) -> Option<u32> {
        let guard = self.guard.id();
        let children = std::fs::read_to_string(format!("/proc/{guard}/task/{guard}/children")).ok()?;
        let mut ids = children.split_whitespace().filter_map(|id| id.parse().ok());
        // The other child is the shell that watches the pipe.
        ids.find(|id| command(*id) != command(guard))
    }

    /// The end of its log, if it ended.
    pub(crate) fn ended(&mut self) -> Result<Option<String>> {
        if self.guard.try_wait()?.is_none() {
            return Ok(None);
        }
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(15).collect();
        Ok(Some(lines.into_iter().rev().collect::<Vec<_>>().join("\n")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            drop(pipe.write_all(b"stop\n"));
        }
        // The guard ends after the program, so that nobody removes its files too early.
        drop(self.guard.wait());
    }
}

/// What a process was started with.
fn command(id: u32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{id}/cmdline")).ok()
}

/// A port that nobody listens on at this moment.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Where the child below writes the id of its program.
    const FOLDER: &str = "HOSTLER_TEST_GUARD_FOLDER";

    #[test]
    #[ignore = "started, and ended, by the test below"]
    fn holds_a_program() {
        let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
            return;
        };
        let kept = folder.join("kept");
        std::fs::create_dir(&kept).unwrap();
        let script = "trap '' TERM; touch deaf; while :; do sleep 0.1; done";
        let held = Process::start(
            Path::new("env"),
            &[
                "-C".to_owned(),
                folder.display().to_string(),
                "sh".to_owned(),
                "-c".to_owned(),
                script.to_owned(),
            ],
            &kept,
            &folder.join("log"),
        );
        let held = held.unwrap();
        wait_for(|| folder.join("deaf").exists().then_some(()));
        std::fs::write(folder.join("new"), held.id().unwrap().to_string()).unwrap();
        std::fs::rename(folder.join("new"), folder.join("id")).unwrap();
        std::thread::sleep(Duration::from_secs(600));
        drop(held);
    }

    #[test]
    fn a_program_that_hears_no_signal_goes_with_the_test_also_when_its_whole_group_is_told_to_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut test = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "kubernetes::process::tests::holds_a_program",
            ])
            .env(FOLDER, folder.path())
            .process_group(0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let id = wait_for(|| std::fs::read_to_string(folder.path().join("id")).ok());
        let program = Path::new("/proc").join(id.trim());
        assert!(program.exists());
        let group = format!("-{}", test.id());
        let told = Command::new("kill")
            .args(["-TERM", "--", &group])
            .status()
            .unwrap();
        assert!(told.success());
        assert!(!test.wait().unwrap().success());
        wait_for(|| (!program.exists()).then_some(()));
        wait_for(|| (!folder.path().join("kept").exists()).then_some(()));
    }

    fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "not within a minute");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
