//! The network between clients and a broker, made bad by rules of the kernel's
//! packet filter. Only in a network namespace of our own, which `./dev torture
//! experiments` makes: elsewhere the rules would be somebody's firewall.

use std::collections::HashSet;
use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Set where the network is ours alone.
const OURS: &str = "ONCEBOX_OWN_NETWORK";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weather {
    Fair,
    /// One packet in twenty is lost.
    Rain,
    /// No packet arrives, and nobody is told.
    Night,
    /// Every packet is answered by a hang-up.
    Hail,
}

impl Weather {
    const fn rule(self) -> &'static str {
        match self {
            Self::Fair => "accept",
            Self::Rain => "numgen random mod 100 < 5 drop",
            Self::Night => "drop",
            Self::Hail => "reject with tcp reset",
        }
    }
}

/// The way to a port of this host.
pub(super) struct Network {
    port: u16,
}

impl Network {
    pub(super) fn to(port: u16) -> Self {
        assert!(
            std::env::var_os(OURS).is_some(),
            "needs a network of its own: ./dev torture experiments f26"
        );
        Self { port }
    }

    /// What happens to packets in both directions from now on.
    pub(super) async fn becomes(&self, weather: Weather) {
        let Self { port } = self;
        let rule = weather.rule();
        // Made if it is not there, emptied and filled, in one step.
        let rules = format!(
            "table ip port_{port}\ndelete table ip port_{port}\n\
             table ip port_{port} {{\n chain input {{\n type filter hook input priority 0;\n \
             tcp dport {port} {rule}\n tcp sport {port} {rule}\n }}\n}}\n"
        );
        let mut filter = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        filter.stdin.take().unwrap().write_all(rules.as_bytes()).await.unwrap();
        assert!(filter.wait().await.unwrap().success(), "{rules}");
    }

    /// The clients that believe in their connection, by their ports.
    pub(super) fn connections(&self) -> HashSet<u16> {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        table.lines().skip(1).filter_map(|line| self.client(line)).collect()
    }

    /// The local port of a line of the kernel's table, if it is of an established connection to our port.
    fn client(&self, line: &str) -> Option<u16> {
        const ESTABLISHED: &str = "01";
        let port = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
        let mut columns = line.split_whitespace().skip(1);
        let (local, remote, state) = (columns.next()?, columns.next()?, columns.next()?);
        (state == ESTABLISHED && port(remote) == Some(self.port)).then(|| port(local)).flatten()
    }
}
