//! `nvidia-smi topo -m`: a matrix of GPUs (and NICs, which are skipped) with `NV#` for NVLinks and `PIX`, `PXB`, `PHB`,
//! `NODE`, `SYS` for PCIe paths of increasing distance.

use super::{ImportOptions, NVLINKS_MAX, Source, gpu, relay};
use crate::error::TopoError;
use crate::links::{LinkGraph, LinkKind, WeightedLink, builders};
use crate::units::Rate;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Same,
    Nvlinks(u64),
    /// Distance: 0 over one PCIe bridge at most … 2 across sockets.
    Pcie(usize),
}

pub(super) fn read(source: &Source<'_>, options: &ImportOptions) -> Result<LinkGraph, TopoError> {
    let matrix = matrix(source)?;
    let n = matrix.len();
    let mut vertices: Vec<_> = (0..n).map(|i| gpu(format!("gpu{i}"))).collect();
    let mut links = Vec::new();
    let nvlinks = |a: usize, b: usize| match matrix[a][b] {
        Cell::Nvlinks(count) => count,
        _ => 0,
    };
    let total = |a: usize| (0..n).map(|b| nvlinks(a, b)).sum::<u64>();
    let link = |ends: [usize; 2], rate: u64, kind: LinkKind| WeightedLink {
        ends,
        rate: Rate(rate),
        latency_ns: builders::latency_ns(kind),
        kind,
        one_way: false,
    };
    let rate = |count: u64| {
        options.nvlink.0.checked_mul(count).ok_or_else(|| {
            source
                .fault("the options", format!("{count} NVLinks of {} are too much", options.nvlink))
        })
    };
    if options.switched.unwrap_or_else(|| (0..n).any(|a| total(a) > NVLINKS_MAX)) {
        // With a switch, each cell repeats a GPU's total number of links.
        let switch = vertices.len();
        vertices.push(relay("nvswitch0"));
        for a in 0..n {
            let count = (0..n).map(|b| nvlinks(a, b)).max().unwrap_or(0);
            if count > 0 {
                links.push(link([a, switch], rate(count)?, LinkKind::Nvlink));
            }
        }
    } else {
        for a in 0..n {
            for b in (a + 1..n).filter(|&b| nvlinks(a, b) > 0) {
                links.push(link([a, b], rate(nvlinks(a, b))?, LinkKind::Nvlink));
            }
        }
    }
    pcie(&matrix, &mut vertices, &mut |ends| {
        links.push(link(ends, options.pcie.0, LinkKind::Pcie))
    });
    source.graph("nvidia-smi", vertices, links)
}

/// Adds bridges, sockets and the link between sockets as far as the cells show them: NVLink cells hide the PCIe
/// distance of their pair, which is then connected only through other GPUs.
fn pcie(matrix: &[Vec<Cell>], vertices: &mut Vec<super::Vertex>, link: &mut dyn FnMut([usize; 2])) {
    let n = matrix.len();
    let known = matrix.iter().flatten().any(|cell| matches!(cell, Cell::Pcie(_)));
    if !known {
        return;
    }
    let mut below: Vec<usize> = (0..n).collect();
    for (level, name) in ["plx", "socket", "system"].into_iter().enumerate() {
        let mut group: Vec<usize> = (0..n).collect();
        for a in 0..n {
            for b in 0..n {
                if matches!(matrix[a][b], Cell::Pcie(far) if far <= level) {
                    let (old, new) = (group[a].max(group[b]), group[a].min(group[b]));
                    group.iter_mut().filter(|g| **g == old).for_each(|g| *g = new);
                }
            }
        }
        if level == 2 {
            group.fill(0);
        }
        let mut leaders = group.clone();
        leaders.sort_unstable();
        leaders.dedup();
        for (place, leader) in leaders.into_iter().enumerate() {
            let members: Vec<usize> = (0..n).filter(|&i| group[i] == leader).collect();
            let mut tops: Vec<usize> = members.iter().map(|&i| below[i]).collect();
            tops.sort_unstable();
            tops.dedup();
            // A group of one needs no vertex.
            if tops.len() > 1 {
                let vertex = vertices.len();
                vertices.push(relay(format!("{name}{place}")));
                tops.iter().for_each(|&top| link([top, vertex]));
                members.iter().for_each(|&i| below[i] = vertex);
            }
        }
    }
}

fn matrix(source: &Source<'_>) -> Result<Vec<Vec<Cell>>, TopoError> {
    // Some versions underline the header with escape sequences.
    let clean = |line: &str| line.replace("\u{1b}[4m", "").replace("\u{1b}[0m", "");
    let lines: Vec<String> = source.text.lines().map(clean).collect();
    let header = lines.iter().position(|line| line.split_whitespace().next() == Some("GPU0"));
    let (Some(header), place) = (header, |line: usize| format!("line {}", line + 1)) else {
        let problem = "no header line that begins with GPU0; paste all of `nvidia-smi topo -m`";
        return Err(source.fault("the file", problem));
    };
    let columns: Vec<&str> = lines[header].split_whitespace().collect();
    let n = columns.iter().take_while(|column| column.starts_with("GPU")).count();
    for (i, column) in columns[..n].iter().enumerate() {
        if **column != format!("GPU{i}") {
            let problem = format!("column {column} where GPU{i} should be; GPUs count from 0");
            return Err(source.fault(place(header), problem));
        }
    }
    let mut matrix: Vec<Vec<Cell>> = Vec::new();
    for (at, line) in lines.iter().enumerate().skip(header + 1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !words.first().is_some_and(|word| word.starts_with("GPU")) {
            continue;
        }
        let i = matrix.len();
        if i == n || words[0] != format!("GPU{i}") {
            let named = (0..i).any(|before| words[0] == format!("GPU{before}"));
            let why = if named { "is named twice" } else { "has no column, or is out of order" };
            return Err(source.fault(place(at), format!("row {} {why}", words[0])));
        }
        if words.len() < n + 1 {
            let problem = format!("{} cells where {n} GPUs have a column", words.len() - 1);
            return Err(source.fault(place(at), problem));
        }
        let cell = |word: &&str| {
            cell(word).ok_or_else(|| {
                let problem =
                    format!("cell {word:?}; X, NV<count>, PIX, PXB, PHB, NODE or SYS is meant");
                source.fault(place(at), problem)
            })
        };
        matrix.push(words[1..=n].iter().map(cell).collect::<Result<_, _>>()?);
    }
    if matrix.len() != n {
        let problem = format!("{} rows for {n} GPUs; paste the whole matrix", matrix.len());
        return Err(source.fault("the file", problem));
    }
    let mirror = |a: usize, b: usize| matrix[b][a];
    for (a, row) in matrix.iter().enumerate() {
        for (b, &cell) in row.iter().enumerate() {
            if (a == b) != (cell == Cell::Same) {
                let problem = format!("row GPU{a}, column GPU{b}: X stands for a GPU itself only");
                return Err(source.fault("the matrix", problem));
            }
            if cell != mirror(a, b) {
                let problem = format!("GPU{a}–GPU{b} differs from GPU{b}–GPU{a}");
                return Err(source.fault("the matrix", problem));
            }
        }
    }
    Ok(matrix)
}

fn cell(word: &str) -> Option<Cell> {
    Some(match word {
        "X" => Cell::Same,
        "PIX" | "PXB" | "PSB" => Cell::Pcie(0),
        "PHB" | "NODE" => Cell::Pcie(1),
        "SYS" | "SOC" => Cell::Pcie(2),
        _ => Cell::Nvlinks(
            word.strip_prefix("NV")?
                .parse()
                .ok()
                .filter(|count| (1..=NVLINKS_MAX).contains(count))?,
        ),
    })
}
