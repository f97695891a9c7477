//! Servers of a fabric, each as a separate net.

use super::net::Net;

/// All servers of a fabric.
#[derive(Debug, Clone)]
pub(super) struct Servers {
    pub(super) locals: Vec<Local>,
}

/// One server.
#[derive(Debug, Clone)]
pub(super) struct Local {
    pub(super) net: Net,
    /// By vertex of `net`, the vertex of the whole fabric.
    pub(super) vertices: Vec<usize>,
    /// By arc of `net`, the arc of the whole fabric.
    pub(super) arcs: Vec<usize>,
}

impl Local {
    pub(super) fn new(whole: &Net, vertices: &[usize]) -> Local {
        let (net, arcs) = whole.part(vertices);
        Local { net, vertices: vertices.to_vec(), arcs }
    }

    pub(super) fn gpus(&self) -> impl Iterator<Item = usize> {
        self.net.gpus.iter().map(|&gpu| self.vertices[gpu])
    }
}

/// Lengths of arcs, which grow with the load. `row`: by arc, the arc whose capacity it shares; `load`: per row.
pub(super) fn lengths(net: &Net, load: &[i64], row: &[usize]) -> Vec<i64> {
    let full = |&row: &usize| (load[row] + 1) as f64 / net.arcs[row].cap as f64;
    let most = row.iter().map(full).fold(f64::MIN_POSITIVE, f64::max);
    let length = |row: &usize| {
        let steep = (full(row) / most).powi(POWER) / net.arcs[*row].cap as f64;
        (steep * UNIT) as i64 + 1
    };
    row.iter().map(length).collect()
}

/// Exponent by which a length grows with the load of an arc.
const POWER: i32 = 4;
/// Mean length of an arc.
const UNIT: f64 = (1u64 << 30) as f64;
