//! Maximum flow and minimum cut: Dinic's algorithm on integer capacities.

/// A network to which arcs are added once; flows are computed from scratch each time.
#[derive(Debug, Clone)]
pub struct FlowNet {
    first: Vec<Vec<u32>>,
    /// Arc 2i and its opposite 2i + 1.
    to: Vec<u32>,
    cap: Vec<i128>,
    residual: Vec<i128>,
    level: Vec<u32>,
    next: Vec<usize>,
}

impl FlowNet {
    /// `n` vertices, no arc.
    pub fn new(n: usize) -> FlowNet {
        FlowNet {
            first: vec![Vec::new(); n],
            to: Vec::new(),
            cap: Vec::new(),
            residual: Vec::new(),
            level: vec![0; n],
            next: vec![0; n],
        }
    }

    /// Adds an arc with capacity `cap` forward and `back` backward; returns its number.
    pub fn add(&mut self, from: usize, to: usize, cap: i128, back: i128) -> usize {
        let arc = self.to.len();
        self.first[from].push(arc as u32);
        self.first[to].push(arc as u32 + 1);
        self.to.extend([to as u32, from as u32]);
        self.cap.extend([cap, back]);
        arc
    }

    /// Changes the forward capacity of an arc.
    pub fn set(&mut self, arc: usize, cap: i128) {
        self.cap[arc] = cap;
    }

    /// The flow from `source` to `sink`, or `enough` if there is that much.
    pub fn max_flow(&mut self, source: usize, sink: usize, enough: i128) -> i128 {
        self.residual.clone_from(&self.cap);
        let mut total = 0;
        while total < enough && self.levels(source, sink) {
            self.next.fill(0);
            loop {
                let pushed = self.push(source, sink, enough - total);
                if pushed == 0 {
                    break;
                }
                total += pushed;
            }
        }
        total
    }

    /// After a flow below `enough`: which vertices are on the source's side of a minimum cut.
    pub fn source_side(&self) -> Vec<bool> {
        self.level.iter().map(|&level| level != UNSEEN).collect()
    }

    fn levels(&mut self, source: usize, sink: usize) -> bool {
        self.level.fill(UNSEEN);
        self.level[source] = 0;
        let mut queue = vec![source];
        let mut head = 0;
        while head < queue.len() {
            let here = queue[head];
            head += 1;
            for &arc in &self.first[here] {
                let to = self.to[arc as usize] as usize;
                if self.residual[arc as usize] > 0 && self.level[to] == UNSEEN {
                    self.level[to] = self.level[here] + 1;
                    queue.push(to);
                }
            }
        }
        self.level[sink] != UNSEEN
    }

    fn push(&mut self, here: usize, sink: usize, most: i128) -> i128 {
        if here == sink || most == 0 {
            return most;
        }
        while self.next[here] < self.first[here].len() {
            let arc = self.first[here][self.next[here]] as usize;
            let to = self.to[arc] as usize;
            if self.residual[arc] > 0 && self.level[to] == self.level[here] + 1 {
                let pushed = self.push(to, sink, most.min(self.residual[arc]));
                if pushed > 0 {
                    self.residual[arc] -= pushed;
                    self.residual[arc ^ 1] += pushed;
                    return pushed;
                }
            }
            self.next[here] += 1;
        }
        0
    }
}

const UNSEEN: u32 = u32::MAX;
