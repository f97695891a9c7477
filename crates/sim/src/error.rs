//! Why a simulation cannot be built.

/// Why a simulation was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// No host, or more hosts than packets can name.
    #[error("a fabric of {0} hosts cannot be simulated: use 1 to 65535")]
    Hosts(usize),
    /// The graph was not made by a builder or from a fabric file.
    #[error("host {host:?} stands after a switch: list all hosts before the switches")]
    HostOrder {
        /// The host's name.
        host: String,
    },
    /// Hosts do not choose between links.
    #[error("host {host:?} has {links} links: the simulator wants exactly one per host")]
    HostLinks {
        /// The host's name.
        host: String,
        /// Number of links.
        links: usize,
    },
}
