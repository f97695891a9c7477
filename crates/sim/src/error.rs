//! What cannot be simulated, and why.

/// Why a simulation was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// None, or more than packets can name.
    #[error("a fabric of {0} hosts cannot be simulated: use 1 to 65535")]
    Hosts(usize),
    /// The graph was not made by a builder or a fabric file.
    #[error("host {host:?} stands after a switch: list all hosts before the switches")]
    HostOrder {
        /// Its name.
        host: String,
    },
    /// Hosts do not choose between links of their own.
    #[error("host {host:?} has {links} links: the simulator wants exactly one per host")]
    HostLinks {
        /// Its name.
        host: String,
        /// How many.
        links: usize,
    },
}
