//! The run as a picture: two lanes over time, faults above, effects below.

use std::fmt::Write as _;

use super::lane::{LaneReport, What};
use super::proof::Proof;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 790.0;
const LANE_HEIGHT: f64 = 150.0;
const BINS: usize = 140;
const BIN_WIDTH: f64 = (RIGHT - LEFT) / BINS as f64;

const STYLE: &str = "text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#1c1b18}\
.muted{fill:#5c5a52;font-size:11px}.ok{fill:#1a6b3c}.bad{fill:#a8221b}.head{font-weight:600;font-size:15px}\
.effect{fill:#0b5c6b}.twice{fill:#a8221b}.lost{fill:none;stroke:#a8221b;stroke-width:1.5}\
.kill{stroke:#1c1b18;stroke-width:1.5}.down{fill:#8a4b00;opacity:.16}.line{stroke:#8a877c;stroke-width:1}";

/// An SVG document. Everything it shows is also in its text.
pub(super) fn draw(lanes: &[(&LaneReport, &Proof)], orders: u32, seconds: f64) -> String {
    let height = 70.0 + lanes.len() as f64 * LANE_HEIGHT + 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-labelledby=\"t d\"><title id=\"t\">oncebox demo</title><desc id=\"d\">{}</desc>\
         <style>{STYLE}</style><rect width=\"100%\" height=\"100%\" fill=\"#fbfaf7\"/>",
        description(lanes, orders)
    );
    let seed = lanes.first().map_or(0, |(run, _)| run.seed);
    let _ = write!(
        svg,
        "<text class=\"head\" x=\"24\" y=\"34\">{orders} orders, the same faults, seed {seed}, {seconds:.1} s</text>"
    );
    let scale = (RIGHT - LEFT) / seconds.max(0.1);
    let bins: Vec<Bins> = lanes.iter().map(|(_, proof)| bins(proof, scale)).collect();
    // One scale for both lanes, so that their bars can be compared.
    let tallest = bins.iter().flatten().map(|(once, twice)| once + twice).max().unwrap_or(1).max(1);
    let unit = (LANE_HEIGHT - 60.0) / f64::from(tallest);
    for (index, ((run, proof), bins)) in lanes.iter().zip(&bins).enumerate() {
        let top = 60.0 + index as f64 * LANE_HEIGHT;
        lane(&mut svg, top, scale, run, proof);
        effects(&mut svg, top + LANE_HEIGHT - 30.0, unit, bins);
    }
    legend(&mut svg, height - 28.0);
    svg.push_str("</svg>\n");
    svg
}

fn description(lanes: &[(&LaneReport, &Proof)], orders: u32) -> String {
    let mut text = String::new();
    for (run, proof) in lanes {
        let _ = write!(
            text,
            "{}: {orders} orders, {} effects, {} lost, {} doubled, {} kills, {} outages. ",
            run.service.name(),
            proof.effects,
            proof.lost,
            proof.doubled,
            run.kills,
            run.outages
        );
    }
    text
}

fn lane(svg: &mut String, top: f64, scale: f64, run: &LaneReport, proof: &Proof) {
    let base = top + LANE_HEIGHT - 30.0;
    let _ = write!(svg, "<text class=\"head\" x=\"24\" y=\"{}\">{}</text>", base - 30.0, run.service.name());
    faults(svg, (top, base), scale, run);
    lost(svg, base + 8.0, scale, proof);
    let _ = write!(svg, "<line class=\"line\" x1=\"{LEFT}\" y1=\"{base}\" x2=\"{RIGHT}\" y2=\"{base}\"/>");
    let class = if proof.lost == 0 && proof.doubled == 0 { "ok" } else { "bad" };
    for (row, text) in [
        format!("effects {}", proof.effects),
        format!("lost {}", proof.lost),
        format!("doubled {}", proof.doubled),
        format!("money {}", proof.money()),
    ]
    .iter()
    .enumerate()
    {
        let _ = write!(
            svg,
            "<text class=\"{class}\" x=\"{}\" y=\"{:.1}\">{text}</text>",
            RIGHT + 16.0,
            top + 46.0 + row as f64 * 20.0
        );
    }
}

fn faults(svg: &mut String, (top, base): (f64, f64), scale: f64, run: &LaneReport) {
    let mut down = None;
    for event in &run.events {
        let at = x(event.at, scale);
        match &event.what {
            What::Killed(point) => {
                let _ = write!(
                    svg,
                    "<path class=\"kill\" d=\"M{:.1} {:.1}l8 8m0 -8l-8 8\"><title>killed {}</title></path>",
                    at - 4.0,
                    top + 6.0,
                    point.name()
                );
            }
            What::Down => down = Some(at),
            What::Up => {
                let from = down.take().unwrap_or(at);
                let _ = write!(
                    svg,
                    "<rect class=\"down\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>broker down</title></rect>",
                    top + 2.0,
                    (at - from).max(2.0),
                    base - top
                );
            }
        }
    }
}

/// Hollow marks where orders were placed whose effect never came, drawn side
/// by side where they would cover each other.
fn lost(svg: &mut String, y: f64, scale: f64, proof: &Proof) {
    let mut next = LEFT;
    for at in &proof.lost_at {
        let place = x(*at / 1000.0, scale).max(next);
        next = place + 7.0;
        let _ = write!(svg, "<circle class=\"lost\" cx=\"{place:.1}\" cy=\"{y:.1}\" r=\"2.8\"/>");
    }
}

/// Effects and repetitions per bin of time.
type Bins = Vec<(u32, u32)>;

fn bins(proof: &Proof, scale: f64) -> Bins {
    let mut bins = vec![(0, 0); BINS];
    for (at, repeated) in &proof.timeline {
        let place = ((x(*at / 1000.0, scale) - LEFT) / BIN_WIDTH) as usize;
        if let Some(bin) = bins.get_mut(place.min(BINS - 1)) {
            if *repeated { bin.1 += 1 } else { bin.0 += 1 }
        }
    }
    bins
}

/// Each bin as a bar, repetitions stacked on top of it.
fn effects(svg: &mut String, base: f64, unit: f64, bins: &Bins) {
    for (index, (once, twice)) in bins.iter().enumerate() {
        let left = LEFT + index as f64 * BIN_WIDTH;
        let (tall, more) = (f64::from(*once) * unit, f64::from(*twice) * unit);
        for (class, y, height) in [("effect", base - tall, tall), ("twice", base - tall - more, more)] {
            if height > 0.0 {
                let _ = write!(
                    svg,
                    "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
                    BIN_WIDTH - 1.0
                );
            }
        }
    }
}

fn legend(svg: &mut String, y: f64) {
    let _ = write!(
        svg,
        "<path class=\"kill\" d=\"M90 {0}l8 8m0 -8l-8 8\"/><text class=\"muted\" x=\"104\" y=\"{1}\">worker killed</text>\
         <rect class=\"down\" x=\"220\" y=\"{0}\" width=\"14\" height=\"9\"/><text class=\"muted\" x=\"240\" y=\"{1}\">broker down</text>\
         <rect class=\"effect\" x=\"340\" y=\"{0}\" width=\"9\" height=\"9\"/><text class=\"muted\" x=\"355\" y=\"{1}\">effect</text>\
         <rect class=\"twice\" x=\"420\" y=\"{0}\" width=\"9\" height=\"9\"/><text class=\"muted\" x=\"435\" y=\"{1}\">effect repeated</text>\
         <circle class=\"lost\" cx=\"570\" cy=\"{2}\" r=\"3.5\"/><text class=\"muted\" x=\"580\" y=\"{1}\">order whose effect never came</text>",
        y,
        y + 9.0,
        y + 4.5
    );
}

fn x(at: f64, scale: f64) -> f64 {
    (LEFT + at * scale).clamp(LEFT, RIGHT)
}
