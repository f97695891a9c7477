//! The algorithms of an operation, found by name, and the choice between them.

use netsum_net::mesh::MeshError;

use super::request::Request;
use crate::comm::Comm;
use crate::link_cost::LinkCost;

/// One way to do an operation.
pub(crate) struct Algorithm<R: Request> {
    /// In options.
    pub(crate) name: &'static str,
    /// Seconds that a request of that shape will take; `None` where this algorithm cannot do it. Equal at all ranks.
    pub(crate) cost: fn(&LinkCost, &R::Shape) -> Option<f64>,
    pub(crate) run: fn(&mut Comm<'_>, &mut R) -> Result<(), MeshError>,
}

/// All algorithms of an operation.
pub(crate) struct Registry<R: Request + 'static> {
    /// The operation, as options name it.
    pub(crate) operation: &'static str,
    /// The algorithm for ranks that all share memory; the cost of no other comes near.
    pub(crate) in_memory: Algorithm<R>,
    /// The name of the algorithm for a group of one rank: it copies what there is to copy, without shared memory.
    pub(crate) alone: &'static str,
    /// The algorithms that send messages. Of two with equal costs the first is chosen.
    pub(crate) over_mesh: &'static [Algorithm<R>],
}

/// A registry of any kind of request.
pub(crate) trait Names: Sync {
    /// The operation, as options name it.
    fn operation(&self) -> &'static str;

    /// The names of its algorithms.
    fn names(&self) -> Vec<&'static str>;
}

impl<R: Request + 'static> Names for Registry<R> {
    fn operation(&self) -> &'static str {
        self.operation
    }

    fn names(&self) -> Vec<&'static str> {
        self.all().map(|algorithm| algorithm.name).collect()
    }
}

impl<R: Request + 'static> Registry<R> {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Algorithm<R>> {
        std::iter::once(&self.in_memory).chain(self.over_mesh)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Algorithm<R>> {
        self.all().find(|algorithm| algorithm.name == name)
    }

    /// The algorithm that `wanted` names if it can do the request, else the cheapest.
    pub(crate) fn choose(
        &self,
        wanted: Option<&str>,
        link: &LinkCost,
        shape: &R::Shape,
    ) -> &Algorithm<R> {
        let cost = |algorithm: &Algorithm<R>| (algorithm.cost)(link, shape);
        let named = wanted.and_then(|name| self.find(name)).filter(|named| cost(named).is_some());
        let able = || self.all().filter_map(|algorithm| Some((algorithm, cost(algorithm)?)));
        let cheapest = || able().reduce(|best, next| if next.1 < best.1 { next } else { best });
        let chosen = named.or_else(|| cheapest().map(|(algorithm, _)| algorithm));
        chosen.expect("one algorithm of every operation can do every request")
    }

    /// Seconds of the algorithm that would be chosen.
    pub(crate) fn seconds(&self, wanted: Option<&str>, link: &LinkCost, shape: &R::Shape) -> f64 {
        (self.choose(wanted, link, shape).cost)(link, shape).unwrap_or(f64::INFINITY)
    }

    /// Runs the request by the algorithm that all ranks choose alike.
    pub(crate) fn run(&self, comm: &mut Comm<'_>, request: &mut R) -> Result<(), MeshError> {
        if comm.size() == 1 {
            let alone = self.find(self.alone).expect("a test finds the name in every registry");
            return (alone.run)(comm, request);
        }
        let wanted = comm.wanted(self.operation);
        if comm.in_memory() && wanted.is_none() {
            // The costs of the others are not worked out in vain.
            return (self.in_memory.run)(comm, request);
        }
        (self.choose(wanted, &comm.link(), &request.shape()).run)(comm, request)
    }
}
