//! What the machine says about itself.

use std::fs;

/// Processes that wanted a processor during the last minute.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

/// Memory of this process that is resident, in bytes.
pub(crate) fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
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
