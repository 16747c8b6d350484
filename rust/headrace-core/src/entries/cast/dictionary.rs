//! Dictionary columns: each text is parsed once per record batch.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::ArrowDictionaryKeyType;
use arrow_array::{ArrayRef, DictionaryArray, PrimitiveArray};
use arrow_buffer::{ArrowNativeType, NullBufferBuilder};

use super::Values;
use super::primitive::bits;
use crate::entries::var_bytes::defect;

/// The maximum memory of a distinct text besides its bytes: its place in the table, which is half empty and may be growing, and
/// the allocation of its bytes.
pub(crate) const DISTINCT: usize = 96;

/// The maximum number of places that the table keeps for the next record batch.
const MOST_KEPT: usize = 1 << 16;

/// The keys, and the values of the texts, in the order in which they came.
pub(super) struct Dictionary<K: ArrowDictionaryKeyType> {
    keys: Vec<K::Native>,
    nulls: NullBufferBuilder,
    key_of: HashMap<Box<[u8]>, K::Native>,
    /// The total bytes of the texts in `key_of`.
    texts: usize,
    values: Box<dyn Values>,
}

impl<K: ArrowDictionaryKeyType> Dictionary<K> {
    pub(super) fn new(values: Box<dyn Values>) -> Self {
        Self { keys: Vec::new(), nulls: NullBufferBuilder::new(0), key_of: HashMap::new(), texts: 0, values }
    }

    /// The key of a text; `None` if the text does not fit the type, or there are too many texts for the key type.
    fn key(&mut self, text: &[u8]) -> Option<K::Native> {
        if let Some(key) = self.key_of.get(text) {
            return Some(*key);
        }
        let key = K::Native::from_usize(self.key_of.len())?;
        if !self.values.push(text) {
            return None;
        }
        self.key_of.insert(text.into(), key);
        self.texts += text.len();
        Some(key)
    }
}

impl<K: ArrowDictionaryKeyType> Values for Dictionary<K> {
    fn push(&mut self, text: &[u8]) -> bool {
        let Some(key) = self.key(text) else { return false };
        self.keys.push(key);
        self.nulls.append_non_null();
        true
    }

    fn push_null(&mut self) {
        self.keys.push(K::Native::default());
        self.nulls.append_null();
    }

    /// Removes the key. The value stays, possibly without a row that has it.
    fn pop(&mut self) {
        self.keys.pop();
        self.nulls.truncate(self.keys.len());
    }

    fn bytes(&self) -> usize {
        let texts = self.texts + self.key_of.len() * DISTINCT;
        self.keys.len() * size_of::<K::Native>() + bits(&self.nulls) + texts + self.values.bytes()
    }

    fn finish(&mut self) -> crate::Result<ArrayRef> {
        self.key_of.clear();
        self.key_of.shrink_to(MOST_KEPT);
        self.texts = 0;
        let keys = PrimitiveArray::<K>::try_new(std::mem::take(&mut self.keys).into(), self.nulls.finish());
        let values = self.values.finish()?;
        let array = keys.and_then(|keys| DictionaryArray::try_new(keys, values));
        Ok(Arc::new(array.map_err(|error| defect(&error))?))
    }
}
