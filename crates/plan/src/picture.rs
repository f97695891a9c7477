//! A plan as a picture: GPUs in a circle, switches inside, each tree in its colour, links with width by rate and
//! darkness by load.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::fmt::Write;

use netsum_topo::links::{LinkGraph, Role, TreePlan};

/// An SVG of the plan on its fabric.
pub fn picture(graph: &LinkGraph, plan: &TreePlan) -> String {
    let places = places(graph);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" font-family="{FONTS}" font-size="14"><rect width="100%" height="100%" fill="white"/>"##
    );
    links(graph, plan, &places, &mut text);
    for (index, flow) in plan.flows.iter().enumerate() {
        let colour = colour(index, plan.flows.len());
        let ways = if flow.down.is_empty() { &flow.up } else { &flow.down };
        for pair in ways.iter().flat_map(|way| way.windows(2)) {
            let [a, b] = [places[pair[0]], places[pair[1]]];
            let (dx, dy) = (b.0 - a.0, b.1 - a.1);
            let length = dx.hypot(dy).max(1.0);
            // Trees on the same link are drawn side by side.
            let side = (index as f64 - (plan.flows.len() as f64 - 1.0) / 2.0) * LANE;
            let side = side.clamp(-LANES_MAX, LANES_MAX);
            let (x, y) = (-dy / length * side, dx / length * side);
            let _ = writeln!(
                text,
                r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{colour}" stroke-width="2"><title>tree {index}: share {}</title></line>"#,
                a.0 + x,
                a.1 + y,
                b.0 + x,
                b.1 + y,
                flow.share
            );
        }
    }
    for (vertex, &(x, y)) in graph.vertices().iter().zip(&places) {
        let name = vertex.name.replace('&', "&amp;").replace('<', "&lt;");
        let shape = match vertex.role {
            Role::Gpu => {
                format!(r##"<circle cx="{x:.1}" cy="{y:.1}" r="22" fill="#eef" stroke="#333"/>"##)
            }
            Role::Switch { .. } => format!(
                r##"<rect x="{:.1}" y="{:.1}" width="70" height="28" fill="#ffd" stroke="#333"/>"##,
                x - 35.0,
                y - 14.0
            ),
        };
        let _ = writeln!(
            text,
            r#"{shape}<text x="{x:.1}" y="{:.1}" text-anchor="middle">{name}</text>"#,
            y + 5.0
        );
    }
    text.push_str("</svg>\n");
    text
}

/// The links themselves, in grey: width by rate, darkness by load.
fn links(graph: &LinkGraph, plan: &TreePlan, places: &[(f64, f64)], text: &mut String) {
    let mut load: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for flow in &plan.flows {
        for pair in flow.up.iter().chain(&flow.down).flat_map(|way| way.windows(2)) {
            let rate = flow.share.to_f64() * plan.rate_bps.to_f64();
            *load.entry((pair[0], pair[1])).or_insert(0.0) += rate;
        }
    }
    let mut rates: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for link in graph.links() {
        let [a, b] = link.ends;
        *rates.entry((a.min(b), a.max(b))).or_insert(0.0) += link.rate.0 as f64;
    }
    let fastest = rates.values().copied().fold(1.0, f64::max);
    for ((a, b), rate) in rates {
        let of = |from, to| load.get(&(from, to)).copied().unwrap_or(0.0);
        let full = of(a, b).max(of(b, a)) / rate;
        let grey = 235.0 - 110.0 * full.min(1.0);
        let width = (LANES_MAX * 2.0 * rate / fastest).max(3.0);
        let _ = writeln!(
            text,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="rgb({grey:.0},{grey:.0},{grey:.0})" stroke-width="{width:.1}"><title>{:.1} GB/s, {:.0} % full</title></line>"#,
            places[a].0,
            places[a].1,
            places[b].0,
            places[b].1,
            rate / 8e9,
            100.0 * full
        );
        // Beside the middle, so that trees do not hide it.
        let [a, b] = [places[a], places[b]];
        let length = (b.0 - a.0).hypot(b.1 - a.1).max(1.0);
        let _ = writeln!(
            text,
            r##"<text x="{:.1}" y="{:.1}" font-size="10" fill="#666" text-anchor="middle">{:.0} %</text>"##,
            a.0 * 0.6 + b.0 * 0.4 - (b.1 - a.1) / length * (LANES_MAX + 8.0),
            a.1 * 0.6 + b.1 * 0.4 + (b.0 - a.0) / length * (LANES_MAX + 8.0),
            100.0 * full
        );
    }
}

fn places(graph: &LinkGraph) -> Vec<(f64, f64)> {
    let (gpus, all) = (graph.gpus().len(), graph.vertices().len());
    let (mut gpu, mut switch) = (0, 0);
    let on_circle = |place: usize, of: usize, radius: f64| {
        let angle = TAU * (place as f64 + 0.5) / of as f64 - TAU / 4.0;
        (SIZE / 2.0 + radius * angle.cos(), SIZE / 2.0 + radius * angle.sin())
    };
    let place = |role: Role| match role {
        Role::Gpu => {
            gpu += 1;
            on_circle(gpu - 1, gpus, SIZE * 0.42)
        }
        Role::Switch { .. } => {
            switch += 1;
            let others = all - gpus;
            if others == 1 {
                (SIZE / 2.0, SIZE / 2.0)
            } else {
                on_circle(switch - 1, others, SIZE * 0.17)
            }
        }
    };
    graph.vertices().iter().map(|vertex| vertex.role).map(place).collect()
}

fn colour(index: usize, of: usize) -> String {
    format!("hsl({:.0},70%,42%)", 360.0 * index as f64 / of as f64)
}

/// By name: the renderer may not know generic families.
const FONTS: &str = "Helvetica,Arial,Liberation Sans,DejaVu Sans,sans-serif";
const SIZE: f64 = 800.0;
const LANE: f64 = 3.0;
const LANES_MAX: f64 = 12.0;
