//! Distributions of flow sizes, as published.

/// Interpolation between the points of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// Straight lines, as the public generators sample.
    Linear,
    /// Steps: the size of the upper point.
    Upper,
}

/// A cumulative distribution of sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSizes {
    name: String,
    /// Bytes, and the share of flows that are not larger; both ascending, the last share is 1.
    points: Vec<(f64, f64)>,
    interpolation: Interpolation,
}

impl FlowSizes {
    /// A custom distribution; `None` unless sizes and shares ascend and the last share is 1. Sizes are at least one
    /// byte, but the first may be 0 with share 0.
    pub fn new(
        name: &str,
        points: Vec<(f64, f64)>,
        interpolation: Interpolation,
    ) -> Option<FlowSizes> {
        let ascending = points.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1);
        let is_size = |p: &(f64, f64)| p.0 >= 1.0 || *p == (0.0, 0.0);
        let sound = points.iter().all(|p| is_size(p) && (0.0..=1.0).contains(&p.1));
        let ends = points.last().is_some_and(|p| p.1 == 1.0 && p.0 >= 1.0);
        (ascending && sound && ends).then(|| FlowSizes {
            name: name.to_owned(),
            points,
            interpolation,
        })
    }

    /// A published distribution by its name, one of [`FlowSizes::NAMES`].
    pub fn named(name: &str) -> Option<FlowSizes> {
        let (points, scale): (&[(f64, f64)], f64) = match name {
            "web-search" => (WEB_SEARCH, 1.0),
            "web-search-packets" => (WEB_SEARCH_PACKETS, 1460.0),
            "web-search-opera" => (WEB_SEARCH_OPERA, 1.0),
            "data-mining" => (DATA_MINING, 1.0),
            "data-mining-packets" => (DATA_MINING_PACKETS, 1460.0),
            "data-mining-opera" => (DATA_MINING_OPERA, 1.0),
            _ => return None,
        };
        let points = points.iter().map(|&(size, share)| (size * scale, share)).collect();
        FlowSizes::new(name, points, Interpolation::Linear)
    }

    /// Names for `named`. Without a suffix: in bytes, the variant of most public generators; `-packets`: in packets of
    /// 1,460 bytes (pFabric's simulator, Homa); `-opera`: Opera's tables.
    pub const NAMES: [&str; 6] = [
        "web-search",
        "web-search-packets",
        "web-search-opera",
        "data-mining",
        "data-mining-packets",
        "data-mining-opera",
    ];

    /// Name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Size at a quantile from 0 to 1, at least one byte.
    pub fn at(&self, share: f64) -> u64 {
        let after = self.points.partition_point(|p| p.1 < share).min(self.points.len() - 1);
        let (upper, high) = self.points[after];
        let size = match (after.checked_sub(1).map(|i| self.points[i]), self.interpolation) {
            (Some((lower, low)), Interpolation::Linear) if high > low => {
                lower + (upper - lower) * (share - low).max(0.0) / (high - low)
            }
            _ => upper,
        };
        (size.round() as u64).max(1)
    }

    /// Mean in bytes, at least one; it sets the rate of arrivals.
    pub fn mean(&self) -> f64 {
        let (first, share) = self.points[0];
        let steps = self.points.windows(2).map(|w| {
            let middle = match self.interpolation {
                Interpolation::Linear => (w[0].0 + w[1].0) / 2.0,
                Interpolation::Upper => w[1].0,
            };
            (w[1].1 - w[0].1) * middle
        });
        (first * share + steps.sum::<f64>()).max(1.0)
    }
}

/// DCTCP (2010), pFabric: HKUST's, Alibaba's and netbench's tables.
const WEB_SEARCH: &[(f64, f64)] = &[
    (0.0, 0.0),
    (1e4, 0.15),
    (2e4, 0.2),
    (3e4, 0.3),
    (5e4, 0.4),
    (8e4, 0.53),
    (2e5, 0.6),
    (1e6, 0.7),
    (2e6, 0.8),
    (5e6, 0.9),
    (1e7, 0.97),
    (3e7, 1.0),
];
const WEB_SEARCH_PACKETS: &[(f64, f64)] = &[
    (6.0, 0.0),
    (6.0, 0.15),
    (13.0, 0.2),
    (19.0, 0.3),
    (33.0, 0.4),
    (53.0, 0.53),
    (133.0, 0.6),
    (667.0, 0.7),
    (1333.0, 0.8),
    (3333.0, 0.9),
    (6667.0, 0.97),
    (20000.0, 1.0),
];
const WEB_SEARCH_OPERA: &[(f64, f64)] = &[
    (4000.0, 0.0),
    (5971.0, 0.077049),
    (8722.0, 0.152459),
    (18614.0, 0.195082),
    (27563.0, 0.3),
    (44871.0, 0.427869),
    (77113.0, 0.532787),
    (193593.0, 0.601639),
    (620119.0, 0.696721),
    (1933313.0, 0.801639),
    (3147330.0, 0.860656),
    (4853634.0, 0.903279),
    (6901099.0, 0.942623),
    (9812271.0, 0.972131),
    (15759080.0, 0.985246),
    (28589215.0, 1.0),
];
/// VL2 (2009), pFabric: HKUST's and netbench's tables.
const DATA_MINING: &[(f64, f64)] = &[
    (0.0, 0.0),
    (180.0, 0.1),
    (216.0, 0.2),
    (560.0, 0.3),
    (900.0, 0.4),
    (1100.0, 0.5),
    (1870.0, 0.6),
    (3160.0, 0.7),
    (1e4, 0.8),
    (4e5, 0.9),
    (3.16e6, 0.95),
    (1e8, 0.98),
    (1e9, 1.0),
];
const DATA_MINING_PACKETS: &[(f64, f64)] = &[
    (1.0, 0.0),
    (1.0, 0.5),
    (2.0, 0.6),
    (3.0, 0.7),
    (7.0, 0.8),
    (267.0, 0.9),
    (2107.0, 0.95),
    (66667.0, 0.99),
    (666667.0, 1.0),
];
const DATA_MINING_OPERA: &[(f64, f64)] = &[
    (100.0, 0.0),
    (180.0, 0.085),
    (250.0, 0.14),
    (560.0, 0.33),
    (900.0, 0.47),
    (1100.0, 0.55),
    (1870.0, 0.65),
    (3160.0, 0.7),
    (10000.0, 0.8),
    (100001.0, 0.874),
    (400000.0, 0.9),
    (1850000.0, 0.95),
    (1e7, 0.97),
    (3e7, 0.98),
    (1e8, 0.99),
    (2.5e8, 0.995),
    (1e9, 1.0),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn means_match_the_published_tables() {
        let means = [1_711_250.0, 1140.98 * 1460.0, 1_490_033.0, 12_658_199.0, 5116.6 * 1460.0];
        for (name, mean) in FlowSizes::NAMES.into_iter().zip(means) {
            let ours = FlowSizes::named(name).unwrap().mean();
            assert!((ours / mean - 1.0).abs() < 2e-5, "{name}: {ours}");
        }
        let steps = |name| FlowSizes {
            interpolation: Interpolation::Upper,
            ..FlowSizes::named(name).unwrap()
        };
        assert!((steps("web-search").mean() - 2_434_900.0).abs() < 1.0);
        assert!((steps("data-mining").mean() - 23_199_799.0).abs() < 1.0);
    }

    #[test]
    fn samples_have_the_mean() {
        for name in FlowSizes::NAMES {
            let (sizes, mut random) = (FlowSizes::named(name).unwrap(), Random::new(3));
            let n = 400_000;
            let sum: f64 = (0..n).map(|_| sizes.at(random.unit()) as f64).sum();
            let off = sum / f64::from(n) / sizes.mean() - 1.0;
            assert!(off.abs() < 0.03, "{name}: {off}");
            assert!(sizes.at(0.0) >= 1 && sizes.at(1.0) as f64 <= sizes.points.last().unwrap().0);
        }
    }

    #[test]
    fn invalid_distributions_are_refused() {
        let new = |points| FlowSizes::new("x", points, Interpolation::Linear);
        assert!(new(vec![]).is_none());
        assert!(new(vec![(1.0, 0.0), (5.0, 0.9)]).is_none());
        assert!(new(vec![(5.0, 0.0), (1.0, 1.0)]).is_none());
        assert!(new(vec![(f64::NAN, 0.0), (1.0, 1.0)]).is_none());
        assert!(new(vec![(0.0, 0.999999), (1.0, 1.0)]).is_none());
        assert_eq!(new(vec![(0.0, 0.0), (1.0, 1.0)]).unwrap().mean(), 1.0);
    }
}
