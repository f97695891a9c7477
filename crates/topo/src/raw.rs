//! A fabric file as TOML represents it, with positions for error messages; [`crate::parse`] checks it.

use serde::Deserialize;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawFabric {
    pub(crate) name: Spanned<String>,
    pub(crate) controller: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) trusted: bool,
    #[serde(default)]
    pub(crate) host: Vec<RawHost>,
    #[serde(default)]
    pub(crate) switch: Vec<RawSwitch>,
    #[serde(default)]
    pub(crate) link: Vec<RawLink>,
    #[serde(default)]
    pub(crate) server: Vec<RawServer>,
    #[serde(default)]
    pub(crate) tenant: Vec<RawTenant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawHost {
    pub(crate) name: Spanned<String>,
    pub(crate) address: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSwitch {
    pub(crate) name: Spanned<String>,
    pub(crate) address: Spanned<String>,
    pub(crate) memory: Spanned<String>,
    pub(crate) metrics: Option<Spanned<String>>,
    pub(crate) slots: Option<Spanned<u32>>,
    pub(crate) policy: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawServer {
    pub(crate) name: Spanned<String>,
    pub(crate) address: Spanned<String>,
    pub(crate) memory: Spanned<String>,
    pub(crate) metrics: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTenant {
    pub(crate) name: Spanned<String>,
    pub(crate) jobs: Option<u32>,
    pub(crate) guaranteed: Option<Spanned<u32>>,
    pub(crate) limit: Option<u32>,
    pub(crate) priority: Option<u8>,
    pub(crate) rate: Option<Spanned<String>>,
    pub(crate) packets_per_second: Option<Spanned<u64>>,
    pub(crate) encrypt: Option<Spanned<bool>>,
    #[serde(default)]
    pub(crate) hosts: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLink {
    pub(crate) ends: Spanned<[String; 2]>,
    pub(crate) rate: Spanned<String>,
    pub(crate) latency: Option<Spanned<String>>,
}
