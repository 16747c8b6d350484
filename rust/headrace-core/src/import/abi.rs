//! The structures of the C data interface and the C stream interface, and all reads through their pointers.
//!
//! Every function here relies on one promise by the caller of [`Reader`](super::Reader): the producer follows the interface as
//! far as pointers go. Each pointer is null or points to what the interface requires, with as many elements as the structure
//! counts. The other modules of the import check counts, names and offsets.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use arrow_buffer::{Buffer, MutableBuffer};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, Field};

/// `ArrowSchema`: <https://arrow.apache.org/docs/format/CDataInterface.html#the-arrowschema-structure>.
#[repr(C)]
pub(super) struct CSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut CSchema,
    dictionary: *mut CSchema,
    release: Option<unsafe extern "C" fn(*mut CSchema)>,
    private_data: *mut c_void,
}

/// `ArrowArray`: <https://arrow.apache.org/docs/format/CDataInterface.html#the-arrowarray-structure>.
#[repr(C)]
pub(super) struct CArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut CArray,
    dictionary: *mut CArray,
    release: Option<unsafe extern "C" fn(*mut CArray)>,
    private_data: *mut c_void,
}

/// `ArrowArrayStream`: <https://arrow.apache.org/docs/format/CStreamInterface.html>.
#[repr(C)]
pub(super) struct CStream {
    get_schema: Option<unsafe extern "C" fn(*mut CStream, *mut CSchema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut CStream, *mut CArray) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut CStream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut CStream)>,
    private_data: *mut c_void,
}

// SAFETY: the interface requires that another thread than the one that made them can release structures and read streams,
// one thread at a time; arrays do not change once they are made.
unsafe impl Send for CSchema {}
// SAFETY: as above.
unsafe impl Send for CArray {}
// SAFETY: only `&self` methods that read are reachable by a shared reference.
unsafe impl Sync for CArray {}
// SAFETY: as above; every call takes `&mut self`.
unsafe impl Send for CStream {}

/// A structure with children and a release callback.
trait Tree: Sized {
    const RELEASED: Self;
    fn children(&self) -> impl Iterator<Item = NonNull<Self>>;
    fn release_callback(&self) -> Option<unsafe extern "C" fn(*mut Self)>;

    /// Releases the structure and everything that it owns.
    fn release(&mut self) {
        if let Some(release) = self.release_callback() {
            // SAFETY: the callback is called once, with the structure that holds it; it clears the field.
            unsafe { release(self) }
        }
    }

    /// Releases the structure and its children, the deepest first: a producer's callback may release the children recursively, to
    /// any depth. The interface lets a consumer move children out of their parent
    /// (<https://arrow.apache.org/docs/format/CDataInterface.html#moving-child-arrays>).
    fn release_from_below(&mut self) {
        let mut all: Vec<NonNull<Self>> = self.children().collect();
        let mut next = 0;
        while let Some(&node) = all.get(next) {
            // SAFETY: parents are released after their children, so all structures still exist.
            all.extend(unsafe { node.as_ref() }.children());
            next += 1;
        }
        for node in all.into_iter().rev() {
            // SAFETY: as above; nothing else refers to the structure now.
            let moved = unsafe { ptr::replace(node.as_ptr(), Self::RELEASED) };
            ManuallyDrop::new(moved).release();
        }
        self.release();
    }
}

macro_rules! impl_tree {
    ($structure:ident, { $($field:ident: $value:expr),* $(,)? }) => {
        impl Tree for $structure {
            const RELEASED: Self = Self {
                $($field: $value,)*
                n_children: 0,
                children: ptr::null_mut(),
                dictionary: ptr::null_mut(),
                release: None,
                private_data: ptr::null_mut(),
            };

            fn children(&self) -> impl Iterator<Item = NonNull<Self>> {
                let count = if self.children.is_null() { 0 } else { usize::try_from(self.n_children).unwrap_or(0) };
                // SAFETY: unless null, it points to as many pointers as children, or to a null pointer after the last child: a
                // wrong count is detected before it is used.
                let child = |index| NonNull::new(unsafe { *self.children.add(index) });
                (0..count).map_while(child).chain(NonNull::new(self.dictionary))
            }

            fn release_callback(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
                self.release
            }
        }
    };
}

impl_tree!(CSchema, { format: ptr::null(), name: ptr::null(), metadata: ptr::null(), flags: 0 });
impl_tree!(CArray, { length: 0, null_count: 0, offset: 0, n_buffers: 0, buffers: ptr::null_mut() });

impl CSchema {
    /// Moves the structure out of the producer's memory, and marks the original as released.
    ///
    /// # Safety
    ///
    /// `from` points to an `ArrowSchema` of a producer that keeps the promise in the module's documentation.
    pub(super) unsafe fn take(from: NonNull<c_void>) -> Self {
        // SAFETY: promised by the caller.
        unsafe { ptr::replace(from.cast().as_ptr(), Self::RELEASED) }
    }

    /// Whether the schema has been released, because it was read before.
    pub(super) fn is_released(&self) -> bool {
        self.release.is_none()
    }

    /// The name of the field.
    pub(super) fn name(&self) -> &CStr {
        // SAFETY: it is null or points to a text that ends with a zero byte.
        if self.name.is_null() { c"" } else { unsafe { CStr::from_ptr(self.name) } }
    }

    /// The format string of the type, if it is UTF-8.
    pub(super) fn format(&self) -> Option<&str> {
        // SAFETY: it is null or points to a text that ends with a zero byte.
        if self.format.is_null() { None } else { unsafe { CStr::from_ptr(self.format) }.to_str().ok() }
    }

    /// The number of children, unless it is impossible.
    pub(super) fn child_count(&self) -> Option<usize> {
        usize::try_from(self.n_children).ok().filter(|count| *count == 0 || !self.children.is_null())
    }

    /// The children and the dictionary that are not null.
    pub(super) fn below(&self) -> impl Iterator<Item = &Self> {
        // SAFETY: they live as long as this structure.
        Tree::children(self).map(|child| unsafe { child.as_ref() })
    }

    pub(super) fn has_dictionary(&self) -> bool {
        !self.dictionary.is_null()
    }

    /// Arrow's field for this structure alone: as if all its children and its dictionary had the type null.
    pub(super) fn to_field(&self) -> Result<Field, ArrowError> {
        let mut null = Self { format: c"n".as_ptr(), name: c"".as_ptr(), ..Self::RELEASED };
        let count = self.child_count().unwrap_or(0);
        let mut children = vec![&raw mut null; count];
        let alone = ManuallyDrop::new(Self {
            format: self.format,
            name: c"".as_ptr(), // arrow panics if a name is not UTF-8
            metadata: self.metadata,
            flags: self.flags,
            n_children: self.n_children,
            children: children.as_mut_ptr(),
            dictionary: if self.dictionary.is_null() { ptr::null_mut() } else { &raw mut null },
            release: None,
            private_data: ptr::null_mut(),
        });
        let same: *const Self = &raw const *alone;
        // SAFETY: both are the interface's `ArrowSchema`. Arrow's is never dropped, and everything that it points to outlives it.
        let field = Field::try_from(unsafe { &*same.cast::<FFI_ArrowSchema>() })?;
        Ok(field.with_name(self.name().to_string_lossy()))
    }
}

impl Drop for CSchema {
    fn drop(&mut self) {
        self.release_from_below();
    }
}

impl CArray {
    /// Moves the structure out of the producer's memory, and marks the original as released.
    ///
    /// # Safety
    ///
    /// `from` points to an `ArrowArray` of a producer that keeps the promise in the module's documentation.
    pub(super) unsafe fn take(from: NonNull<c_void>) -> Self {
        // SAFETY: promised by the caller.
        unsafe { ptr::replace(from.cast().as_ptr(), Self::RELEASED) }
    }

    /// Whether the array has been released: the end of a stream, or an array that was read before.
    pub(super) fn is_released(&self) -> bool {
        self.release.is_none()
    }

    /// The number of rows, and the number of elements before them in each buffer; `None` if either is negative.
    pub(super) fn length_and_offset(&self) -> Option<(usize, usize)> {
        let (length, offset) = (usize::try_from(self.length).ok()?, usize::try_from(self.offset).ok()?);
        length.checked_add(offset).filter(|end| isize::try_from(*end).is_ok())?;
        Some((length, offset))
    }

    /// The number of null rows; `None` if the producer has not counted them.
    pub(super) fn null_count(&self) -> Option<usize> {
        usize::try_from(self.null_count).ok()
    }

    pub(super) fn buffer_count(&self) -> Option<usize> {
        usize::try_from(self.n_buffers).ok().filter(|count| *count == 0 || !self.buffers.is_null())
    }

    pub(super) fn child_count(&self) -> Option<usize> {
        usize::try_from(self.n_children).ok().filter(|count| *count == 0 || !self.children.is_null())
    }

    /// The child at `index`, which must be below [`child_count`](Self::child_count).
    pub(super) fn child(&self, index: usize) -> Option<&Self> {
        if index >= self.child_count()? {
            return None;
        }
        // SAFETY: there are as many pointers as children; these live as long as this structure.
        unsafe { (*self.children.add(index)).as_ref() }
    }

    /// The index of the first child that is missing or has fewer than `rows` rows.
    pub(super) fn short_child(&self, rows: usize) -> Option<usize> {
        let has_rows = |child: &Self| child.length_and_offset().is_some_and(|(length, _)| length >= rows);
        (0..self.child_count().unwrap_or(0)).find(|index| !self.child(*index).is_some_and(has_rows))
    }

    pub(super) fn dictionary(&self) -> Option<&Self> {
        // SAFETY: it lives as long as this structure.
        unsafe { self.dictionary.as_ref() }
    }

    /// The buffer at `index` with a size of `bytes`, or `None` if it is null. It keeps `owner` alive, which owns this
    /// structure.
    pub(super) fn buffer(&self, index: usize, bytes: usize, owner: &Arc<Self>) -> Option<Buffer> {
        if index >= self.buffer_count()? || isize::try_from(bytes).is_err() {
            return None;
        }
        // SAFETY: there are as many pointers as buffers.
        let start = unsafe { *self.buffers.add(index) };
        let start = NonNull::new(start.cast_mut().cast::<u8>())?;
        // The pointer of an empty buffer may be anything.
        if bytes == 0 {
            return Some(MutableBuffer::new(0).into());
        }
        // SAFETY: the buffer has at least the bytes of the rows that the structure counts, until the structure is released,
        // which only the owner does.
        Some(unsafe { Buffer::from_custom_allocation(start, bytes, Arc::clone(owner) as _) })
    }

    /// Releases the array immediately, the deepest child first.
    pub(super) fn refuse(mut self) {
        self.release_from_below();
        self.release = None;
    }
}

impl Drop for CArray {
    fn drop(&mut self) {
        self.release();
    }
}

impl CStream {
    /// Moves the structure out of the producer's memory, and marks the original as released.
    ///
    /// # Safety
    ///
    /// `from` points to an `ArrowArrayStream` of a producer that keeps the promise in the module's documentation.
    pub(super) unsafe fn take(from: NonNull<c_void>) -> Self {
        const RELEASED: CStream = CStream {
            get_schema: None,
            get_next: None,
            get_last_error: None,
            release: None,
            private_data: ptr::null_mut(),
        };
        // SAFETY: promised by the caller.
        unsafe { ptr::replace(from.cast().as_ptr(), RELEASED) }
    }

    /// Whether the stream has been released, because it was read before.
    pub(super) fn is_released(&self) -> bool {
        self.release.is_none()
    }

    /// The schema, or the producer's error.
    pub(super) fn schema(&mut self) -> Result<CSchema, String> {
        let mut schema = CSchema::RELEASED;
        let get = self.get_schema.ok_or("the stream has no callback get_schema")?;
        // SAFETY: the callback is the stream's, and it writes to our memory.
        let code = unsafe { get(self, &raw mut schema) };
        if code == 0 { Ok(schema) } else { Err(self.last_error(code)) }
    }

    /// The next array, which is [released](CArray::is_released) at the end of the stream, or the producer's error.
    pub(super) fn next(&mut self) -> Result<CArray, String> {
        let mut array = CArray::RELEASED;
        let get = self.get_next.ok_or("the stream has no callback get_next")?;
        // SAFETY: the callback is the stream's, and it writes to our memory.
        let code = unsafe { get(self, &raw mut array) };
        if code == 0 { Ok(array) } else { Err(self.last_error(code)) }
    }

    fn last_error(&mut self, code: c_int) -> String {
        // SAFETY: the callback is the stream's, whose last call failed.
        let text = self.get_last_error.map_or(ptr::null(), |get| unsafe { get(self) });
        if text.is_null() {
            return std::io::Error::from_raw_os_error(code).to_string();
        }
        // SAFETY: the text ends with a zero byte and stays valid until the next call.
        lossy(unsafe { CStr::from_ptr(text) })
    }
}

impl Drop for CStream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the callback is called once, with the stream that holds it.
            unsafe { release(self) }
        }
    }
}

fn lossy(text: &CStr) -> String {
    text.to_string_lossy().into_owned()
}
