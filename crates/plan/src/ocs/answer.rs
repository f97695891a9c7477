//! A plan with its report and comparison, as users and scripts see it.

use netsum_topo::{OcsSpec, Ratio};
use serde::Serialize;

use super::Composition;
use super::bound::{Bound, bound};
use super::build::synthesize;
use super::check::{Report, check};
use super::closed::closed;
use super::error::OcsViolation;
use super::pieces::Numbers;
use super::plan::OcsPlan;
use super::programme::dp;
use super::shared::shared;

/// Method by which a topology is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// [`closed`]: the best composition of whole devices, in closed form.
    Closed,
    /// [`dp`]: the same by the slides' dynamic programme.
    Dp,
    /// [`shared`]: devices in several trees, and meshes.
    Shared,
}

impl std::str::FromStr for Method {
    type Err = String;

    fn from_str(name: &str) -> Result<Method, String> {
        match name {
            "closed" => Ok(Method::Closed),
            "dp" => Ok(Method::Dp),
            "shared" => Ok(Method::Shared),
            _ => Err(format!("method {name:?} is unknown; use closed, dp or shared")),
        }
    }
}

/// algbw by method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Rings only.
    pub rings: Ratio,
    /// As many full trees as devices allow, or rings if these are faster (slide 24).
    pub baseline: Ratio,
    /// The best composition of whole devices, as in the slides.
    pub closed: Ratio,
    /// The upper bound.
    pub bound: Bound,
}

/// A checked plan, beside its alternatives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The method.
    pub method: Method,
    /// algbw of the other methods.
    pub compared: Comparison,
    /// The verifier's report.
    pub report: Report,
    /// The plan.
    pub plan: OcsPlan,
}

/// A plan by one method. An error is a bug of the method: plans are checked before they are returned.
pub fn answer(spec: &OcsSpec, method: Method) -> Result<Answer, OcsViolation> {
    let plan = match method {
        Method::Closed => synthesize(spec, &closed(spec)),
        Method::Dp => synthesize(spec, &programmed(spec)),
        Method::Shared => shared(spec),
    };
    Ok(Answer { method, compared: compare(spec), report: check(&plan)?, plan })
}

/// algbw by all methods, without building a plan.
pub fn compare(spec: &OcsSpec) -> Comparison {
    let rings = rings_only(spec);
    Comparison {
        rings,
        baseline: rings.max(trees_only(spec)),
        closed: closed(spec).algbw(spec),
        bound: bound(spec),
    }
}

/// algbw for every number of devices from 0 to M by one method. Plans of [`Method::Shared`] are built and
/// checked for each.
pub fn curve(spec: &OcsSpec, method: Method) -> Result<Vec<Ratio>, OcsViolation> {
    let specs = (0..=spec.devices).map(|devices| spec.with_devices(devices));
    match method {
        Method::Closed => Ok(specs.map(|spec| closed(&spec).algbw(&spec)).collect()),
        Method::Dp => Ok(dp(spec).iter().map(|found| found.algbw(spec)).collect()),
        Method::Shared => specs.map(|spec| Ok(check(&shared(&spec))?.algbw)).collect(),
    }
}

fn programmed(spec: &OcsSpec) -> Composition {
    dp(spec).pop().expect("a composition for each number of devices, none included")
}

fn rings_only(spec: &OcsSpec) -> Ratio {
    let numbers = Numbers::of(spec);
    numbers.rate(numbers.rings(numbers.worker_ports()) * numbers.n)
}

fn trees_only(spec: &OcsSpec) -> Ratio {
    let numbers = Numbers::of(spec);
    let trees = numbers.m.checked_div(numbers.full()).unwrap_or(0).min(numbers.d);
    Ratio::from(trees as i64)
}
