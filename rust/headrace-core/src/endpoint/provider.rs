//! A provider of the password, asked at each connect: a vault, a service that issues tokens.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::secret::Secret;

/// Why there is no password now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPassword {
    /// This connect fails, and the next may not. The words hold no secret. A [`PasswordProvider`]'s go behind its name:
    /// `raised TimeoutError`.
    Failed(String),
    /// The caller wants the call to end.
    Interrupted,
}

/// Knows the password of each moment.
pub trait PasswordProvider: Send + Sync + 'static {
    /// The password as it is now. Asked at each connect, in the thread of the call that connects, for which it may take as
    /// long as it likes: its time counts as the connect's, and nothing ends it before.
    fn ask(&self) -> Result<Secret, NoPassword>;

    /// Its name in messages and `Debug`; no secret.
    fn name(&self) -> &str;

    /// Whether it stands for the same password at any time.
    fn equals(&self, other: &dyn PasswordProvider) -> bool;

    /// Itself, to downcast to the type that implements it.
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

/// All have one hash, because each type defines its own equality.
impl Hash for Provider {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<callable {}>", self.0.name())
    }
}
