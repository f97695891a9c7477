//! How connections of the control plane are secured, for clients and the controller alike.

use std::path::Path;
use std::sync::Arc;

use netsum_identity::Credentials;

use crate::error::ControlError;

/// How connections are secured; the same at both ends.
#[derive(Debug, Clone, Default)]
pub enum Security {
    /// Neither encrypted nor authenticated: whoever reaches the controller's port may do everything.
    #[default]
    Trusted,
    /// TLS 1.3 with certificates on both sides.
    Tls(Arc<Credentials>),
}

impl Security {
    /// With credentials of this folder, if one is given. Errors name the file and the remedy.
    pub fn of_folder(credentials: Option<&Path>) -> Result<Security, ControlError> {
        match credentials {
            None => Ok(Security::Trusted),
            Some(folder) => Ok(Security::Tls(Arc::new(Credentials::open(folder)?))),
        }
    }
}
