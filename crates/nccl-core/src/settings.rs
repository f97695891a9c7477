//! NETSUM_* variables: those of `netsum.config` that apply without Python.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::time::Duration;

use netsum_collective::Options;

use crate::failure::Failure;

/// Settings of a communicator.
pub struct Settings {
    /// NETSUM_CONTROLLER.
    pub controller: Option<String>,
    /// NETSUM_HOST.
    pub host: Option<String>,
    /// NETSUM_TIMEOUT_S.
    pub timeout: Duration,
    /// All others.
    pub options: Options,
    /// What the user calls the communicator; added to the group's name.
    pub label: Option<String>,
}

impl Settings {
    /// Reads the environment. Failures name the variable.
    pub fn from_environment() -> Result<Settings, Failure> {
        Settings::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
        let given = |name: &str| {
            let value = variable(name).map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty())
        };
        let mut options = BTreeMap::new();
        for name in OPTIONS {
            if let Some(value) = given(&format!("NETSUM_{}", name.to_uppercase())) {
                options.insert(name.to_owned(), value);
            }
        }
        let timeout = match given("NETSUM_TIMEOUT_S") {
            None => TIMEOUT,
            Some(value) => {
                let seconds = value.parse().ok().filter(|seconds: &f64| *seconds > 0.0);
                let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                timeout.ok_or_else(|| {
                    Failure::argument(format!(
                        "NETSUM_TIMEOUT_S={value}: expected a number of seconds above 0"
                    ))
                })?
            }
        };
        let options = Options::parse(&options).map_err(|error| {
            Failure::argument(format!("an environment variable NETSUM_*: {error}"))
        })?;
        Ok(Settings {
            controller: given("NETSUM_CONTROLLER"),
            host: given("NETSUM_HOST"),
            timeout,
            options,
            label: None,
        })
    }
}

/// The variables that are read.
pub const SETTINGS: [&CStr; 22] = [
    c"NETSUM_CONTROLLER",
    c"NETSUM_HOST",
    c"NETSUM_TIMEOUT_S",
    c"NETSUM_PROTOCOL",
    c"NETSUM_TENANT",
    c"NETSUM_ENCRYPT",
    c"NETSUM_COLLECTIVES",
    c"NETSUM_SCALE",
    c"NETSUM_MAX_TREES",
    c"NETSUM_RELEASE_FRACTION",
    c"NETSUM_CONGESTION",
    c"NETSUM_MIN_BYTES",
    c"NETSUM_SHARED_MEMORY",
    c"NETSUM_ORDER",
    c"NETSUM_NETWORK",
    c"NETSUM_TRUSTED_NETWORK",
    c"NETSUM_DIGEST_EVERY",
    c"NETSUM_ALGORITHMS",
    c"NETSUM_LINK_LATENCY_S",
    c"NETSUM_LINK_BYTES_PER_S",
    c"NETSUM_CREDENTIALS",
    c"NETSUM_RECORDER",
];

const OPTIONS: [&str; 19] = [
    "protocol",
    "tenant",
    "encrypt",
    "collectives",
    "scale",
    "max_trees",
    "release_fraction",
    "congestion",
    "min_bytes",
    "shared_memory",
    "order",
    "network",
    "trusted_network",
    "digest_every",
    "algorithms",
    "link_latency_s",
    "link_bytes_per_s",
    "credentials",
    "recorder",
];
/// NCCL never times out; a program that a dead rank blocks should end at some time.
const TIMEOUT: Duration = Duration::from_secs(1800);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &'static str, value: &'static str) -> Result<Settings, Failure> {
        Settings::read(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn the_list_of_variables_is_what_is_read() {
        let asked = std::cell::RefCell::new(std::collections::BTreeSet::new());
        Settings::read(|name| {
            asked.borrow_mut().insert(name.to_owned());
            None
        })
        .unwrap();
        let listed = SETTINGS.map(|name| name.to_str().unwrap().to_owned());
        assert_eq!(asked.into_inner(), listed.into_iter().collect());
    }

    #[test]
    fn variables_are_read_or_refused_by_name() {
        assert_eq!(read("NETSUM_PROTOCOL", "atp").unwrap().options.protocol, "atp");
        assert_eq!(read("NETSUM_TIMEOUT_S", "0.5").unwrap().timeout, Duration::from_millis(500));
        assert_eq!(read("NETSUM_CONTROLLER", " ").unwrap().controller, None);
        let words = |name, value| read(name, value).err().unwrap().words;
        assert!(words("NETSUM_TIMEOUT_S", "soon").contains("NETSUM_TIMEOUT_S=soon"));
        assert!(words("NETSUM_TIMEOUT_S", "inf").contains("NETSUM_TIMEOUT_S=inf"));
        assert!(words("NETSUM_MAX_TREES", "many").contains("option max_trees"));
        // The tuner's cost model.
        let link = read("NETSUM_LINK_LATENCY_S", "5e-6").unwrap().options;
        assert_eq!(link.link_latency_s, Some(5e-6));
        assert!(!read("NETSUM_SHARED_MEMORY", "off").unwrap().options.shared_memory);
        assert!(words("NETSUM_LINK_BYTES_PER_S", "fast").contains("option link_bytes_per_s"));
    }
}
