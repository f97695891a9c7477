//! Where a controller is, and how connections to it are secured.

use std::path::Path;

use crate::error::ControlError;
use crate::security::Security;

/// A controller as its clients see it. Credentials are those of the client.
#[derive(Debug, Clone)]
pub struct ControllerEndpoint {
    address: String,
    security: Security,
}

impl ControllerEndpoint {
    /// The controller at `host:port`.
    pub fn new(address: impl ToString, security: Security) -> ControllerEndpoint {
        ControllerEndpoint { address: address.to_string(), security }
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

    /// The address, as `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How connections are secured.
    pub fn security(&self) -> &Security {
        &self.security
    }
}
