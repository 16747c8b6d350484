//! A password provider, asked at each connect: a vault, or a service that issues tokens.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::secret::Secret;

/// The reason that no password is available now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPassword {
    /// This connect fails, but the next one may succeed. The words contain no secret. The words of a [`PasswordProvider`]
    /// follow its name in a message: `raised TimeoutError`.
    Failed(String),
    /// The caller wants to end the call.
    Interrupted,
}

/// Provides the current password.
pub trait PasswordProvider: Send + Sync + 'static {
    /// The current password. Called at each connect, in the thread of the call that connects, and may take any time: that
    /// time counts towards the connect, but nothing interrupts it.
    fn ask(&self) -> Result<Secret, NoPassword>;

    /// The provider's name for messages and `Debug`; not a secret.
    fn name(&self) -> &str;

    /// Whether the provider always provides the same password as `other`.
    fn equals(&self, other: &dyn PasswordProvider) -> bool;

    /// This provider, for downcasting to the type that implements it.
    fn as_any(&self) -> &dyn Any;
}

/// A shared [`PasswordProvider`].
#[derive(Clone)]
pub struct Provider(Arc<dyn PasswordProvider>);

impl Provider {
    /// Shares `provider`.
    pub fn new(provider: impl PasswordProvider) -> Self {
        Self(Arc::new(provider))
    }

    /// The shared provider.
    pub fn get(&self) -> &dyn PasswordProvider {
        &*self.0
    }
}

impl PartialEq for Provider {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.equals(other.get())
    }
}

impl Eq for Provider {}

/// All providers have the same hash, because each type defines its own equality.
impl Hash for Provider {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<callable {}>", self.0.name())
    }
}
