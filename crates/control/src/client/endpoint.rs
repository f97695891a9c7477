//! Where controllers are, and how connections to them are secured.

use std::path::Path;

use crate::error::ControlError;
use crate::security::Security;

/// A controller, or several of which one leads, as their clients see them. Credentials are those of the client.
#[derive(Debug, Clone)]
pub struct ControllerEndpoint {
    address: String,
    security: Security,
    /// Whether there are others, so that waiting for this one is not worth much.
    has_others: bool,
}

impl ControllerEndpoint {
    /// The controller at `host:port`, or several, separated by commas.
    pub fn new(address: impl ToString, security: Security) -> ControllerEndpoint {
        ControllerEndpoint { address: address.to_string(), security, has_others: false }
    }

    /// A controller on a closed network: connections are neither encrypted nor authenticated.
    pub fn trusted(address: impl ToString) -> ControllerEndpoint {
        ControllerEndpoint::new(address, Security::Trusted)
    }

    /// Reads the credentials in a folder, if one is given. Errors name the file and the remedy.
    pub fn with_credentials(
        address: impl ToString,
        credentials: Option<&Path>,
    ) -> Result<ControllerEndpoint, ControlError> {
        Ok(ControllerEndpoint::new(address, Security::of_folder(credentials)?))
    }

    /// The address, as `host:port`; of several controllers all, separated by commas.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How connections are secured.
    pub fn security(&self) -> &Security {
        &self.security
    }

    /// Each of the controllers; at least one.
    pub(super) fn each(&self) -> Vec<ControllerEndpoint> {
        let addresses: Vec<&str> = self.address.split(',').map(str::trim).collect();
        let has_others = addresses.len() > 1;
        let one = |address: &str| ControllerEndpoint {
            address: address.to_owned(),
            security: self.security.clone(),
            has_others,
        };
        addresses.into_iter().map(one).collect()
    }

    /// Whether there are other controllers.
    pub(super) fn has_others(&self) -> bool {
        self.has_others
    }
}
