//! What is seen while the demo runs: bars on a terminal, a line per tenth elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::wire::{KillPoint, Service};

/// Shared by both lanes.
#[derive(Clone)]
pub(super) struct Progress {
    inner: Arc<Inner>,
}

struct Inner {
    orders: u32,
    bars: Option<(MultiProgress, [ProgressBar; 2])>,
    tenths: [AtomicU32; 2],
}

impl Progress {
    pub(super) fn start(orders: u32) -> Self {
        let bars = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::new();
            let bar = |name: &'static str| {
                let bar = all.add(ProgressBar::new(u64::from(orders)));
                let style = ProgressStyle::with_template(" {prefix:<8} [{bar:30}] {pos:>5}/{len} {msg}");
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("##-"));
                bar.set_prefix(name);
                bar
            };
            let bars = [bar("naive"), bar("oncebox")];
            (all, bars)
        });
        Self { inner: Arc::new(Inner { orders, bars, tenths: [AtomicU32::new(0), AtomicU32::new(0)] }) }
    }

    fn slot(service: Service) -> usize {
        usize::from(service == Service::Oncebox)
    }

    pub(super) fn placed(&self, service: Service, placed: u32) {
        if let Some(bar) = self.bar(service) {
            bar.set_position(u64::from(placed));
            return;
        }
        let tenth = placed * 10 / self.inner.orders.max(1);
        let Some(last) = self.inner.tenths.get(Self::slot(service)) else { return };
        if last.fetch_max(tenth, Ordering::Relaxed) < tenth {
            eprintln!(" {:<8} {:>3} %", service.name(), tenth * 10);
        }
    }

    pub(super) fn effects(&self, service: Service, effects: u32) {
        if let Some(bar) = self.bar(service) {
            bar.set_message(format!("orders, {effects} effects"));
        }
    }

    pub(super) fn killed(&self, service: Service, point: KillPoint, order: u32, at: Duration) {
        let line = format!(
            " t={:05.2}s  x {} worker killed {} (ord-{order:04})",
            at.as_secs_f64(),
            service.name(),
            point.name()
        );
        match &self.inner.bars {
            Some((all, _)) => all.println(line).unwrap_or_default(),
            None => eprintln!("{line}"),
        }
    }

    pub(super) fn finish(&self) {
        if let Some((_, bars)) = &self.inner.bars {
            bars.iter().for_each(ProgressBar::abandon);
        }
    }

    fn bar(&self, service: Service) -> Option<&ProgressBar> {
        self.inner.bars.as_ref().and_then(|(_, bars)| bars.get(Self::slot(service)))
    }
}
