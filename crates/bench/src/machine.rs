//! What the machine says about itself.

use std::fs;

/// Processes that wanted a processor during the last minute.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

/// Memory of this process that is resident, in bytes.
pub(crate) fn resident() -> u64 {
    memory("self", "VmRSS:")
}

/// The most memory of a process that was ever resident, in bytes.
pub(crate) fn peak(process: u32) -> u64 {
    memory(&process.to_string(), "VmHWM:")
}

fn memory(process: &str, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Processor time of all threads of a process so far, in microseconds.
pub(crate) fn cpu_micros(process: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
    let nanos = threads.map(|thread| {
        let path = thread.expect("a thread").path().join("schedstat");
        let text = fs::read_to_string(path).expect("its statistics");
        text.split(' ').next().and_then(|first| first.parse::<f64>().ok()).expect("nanoseconds")
    });
    nanos.sum::<f64>() / 1e3
}

/// Keeps all threads of this process, and those to come, on one processor; false if that cannot be done.
pub(crate) fn stay_on(processor: usize) -> bool {
    let own = std::process::id().to_string();
    let mut command = std::process::Command::new("taskset");
    command.args(["--all-tasks", "--pid", "--cpu-list", &processor.to_string(), &own]);
    command.output().is_ok_and(|output| output.status.success())
}

/// A directory of this run's own, removed when dropped.
#[derive(Debug)]
pub(crate) struct TempDir(pub(crate) std::path::PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        let name = format!("oncebox-bench-{}", uuid::Uuid::now_v7().simple());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a directory for temporary files");
        Self(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}
