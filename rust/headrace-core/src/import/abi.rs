//! The structures of the C data interface and the C stream interface, and what is read through their pointers: all of the
//! import that is unsafe.
//!
//! Every function here relies on one promise, which the caller of [`Reader`](super::Reader) makes: the structures are those
//! of a producer that keeps to the interface as far as pointers go: each is null or points to what the interface says, for
//! as many elements as the structure counts. What is counted, named and offset is checked by the modules beside this one.

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

// SAFETY: the interface demands that structures can be released, and streams read, by another thread than the one that made
// them, one thread at a time; arrays are not changed once they are made.
unsafe impl Send for CSchema {}
// SAFETY: as above.
unsafe impl Send for CArray {}
// SAFETY: only `&self` methods that read are reachable by a shared reference.
unsafe impl Sync for CArray {}
// SAFETY: as above; every call takes `&mut self`.
unsafe impl Send for CStream {}

/// A structure that has children, and a callback that ends it.
trait Tree: Sized {
    const RELEASED: Self;
    fn children(&self) -> impl Iterator<Item = NonNull<Self>>;
    fn release_callback(&self) -> Option<unsafe extern "C" fn(*mut Self)>;

    /// Ends the structure and what it owns.
    fn release(&mut self) {
        if let Some(release) = self.release_callback() {
            // SAFETY: the callback is called once, with a structure that it is in; it clears the field.
            unsafe { release(self) }
        }
    }

    /// The same, the deepest first: a producer's callback may call that of its children, and so on, as deep as the
    /// structure is. The interface lets a consumer move children out, and leave their parent without them
    /// (<https://arrow.apache.org/docs/format/CDataInterface.html#moving-child-arrays>).
    fn release_from_below(&mut self) {
        let mut all: Vec<NonNull<Self>> = self.children().collect();
        let mut next = 0;
        while let Some(&node) = all.get(next) {
            // SAFETY: parents are released behind their children, so all structures are still there.
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
                // SAFETY: where it is not null there are as many pointers as children, or a null one behind the last child:
                // a count that is wrong is found out before it leads anywhere.
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
    /// Moves the structure out of where the producer has it, which is released then.
    ///
    /// # Safety
    ///
    /// There is an `ArrowSchema`, of a producer as the module's documentation has it.
    pub(super) unsafe fn take(from: NonNull<c_void>) -> Self {
        // SAFETY: promised by the caller.
        unsafe { ptr::replace(from.cast().as_ptr(), Self::RELEASED) }
    }

    /// Whether it has been read before.
    pub(super) fn is_released(&self) -> bool {
        self.release.is_none()
    }

    /// The name of the field.
    pub(super) fn name(&self) -> &CStr {
        // SAFETY: where it is not null there is a text that ends with a zero byte.
        if self.name.is_null() { c"" } else { unsafe { CStr::from_ptr(self.name) } }
    }

    /// The type's format text, if it is one.
    pub(super) fn format(&self) -> Option<&str> {
        // SAFETY: where it is not null there is a text that ends with a zero byte.
        if self.format.is_null() { None } else { unsafe { CStr::from_ptr(self.format) }.to_str().ok() }
    }

    /// How many children it says that it has, if it can have that many.
    pub(super) fn child_count(&self) -> Option<usize> {
        usize::try_from(self.n_children).ok().filter(|count| *count == 0 || !self.children.is_null())
    }

    /// Its children and, if there is one, its dictionary: those that are not null.
    pub(super) fn below(&self) -> impl Iterator<Item = &Self> {
        // SAFETY: they live as long as this structure.
        Tree::children(self).map(|child| unsafe { child.as_ref() })
    }

    pub(super) fn has_dictionary(&self) -> bool {
        !self.dictionary.is_null()
    }

    /// What arrow makes of this structure alone: its children and its dictionary, as many as it has, are of type null.
    pub(super) fn to_field(&self) -> Result<Field, ArrowError> {
        let mut null = Self { format: c"n".as_ptr(), name: c"".as_ptr(), ..Self::RELEASED };
        let count = self.child_count().unwrap_or(0);
        let mut children = vec![&raw mut null; count];
        let alone = ManuallyDrop::new(Self {
            format: self.format,
            name: c"".as_ptr(), // arrow panics over one that is not UTF-8
            metadata: self.metadata,
            flags: self.flags,
            n_children: self.n_children,
            children: children.as_mut_ptr(),
            dictionary: if self.dictionary.is_null() { ptr::null_mut() } else { &raw mut null },
            release: None,
            private_data: ptr::null_mut(),
        });
        let same: *const Self = &raw const *alone;
        // SAFETY: both are the interface's `ArrowSchema`. Nothing drops the other one, and what it points to outlives it.
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
    /// Moves the structure out of where the producer has it, which is released then.
    ///
    /// # Safety
    ///
    /// There is an `ArrowArray`, of a producer as the module's documentation has it.
    pub(super) unsafe fn take(from: NonNull<c_void>) -> Self {
        // SAFETY: promised by the caller.
        unsafe { ptr::replace(from.cast().as_ptr(), Self::RELEASED) }
    }

    /// Whether there is nothing: the end of a stream, or an array that has been read before.
    pub(super) fn is_released(&self) -> bool {
        self.release.is_none()
    }

    /// The number of rows, and how many are before them in each buffer.
    pub(super) fn length_and_offset(&self) -> Option<(usize, usize)> {
        let (length, offset) = (usize::try_from(self.length).ok()?, usize::try_from(self.offset).ok()?);
        length.checked_add(offset).filter(|end| isize::try_from(*end).is_ok())?;
        Some((length, offset))
    }

    /// The number of null rows; `None`: not counted.
    pub(super) fn null_count(&self) -> Option<usize> {
        usize::try_from(self.null_count).ok()
    }

    pub(super) fn buffer_count(&self) -> Option<usize> {
        usize::try_from(self.n_buffers).ok().filter(|count| *count == 0 || !self.buffers.is_null())
    }

    pub(super) fn child_count(&self) -> Option<usize> {
        usize::try_from(self.n_children).ok().filter(|count| *count == 0 || !self.children.is_null())
    }

    /// The child of this number, which is below [the count](Self::child_count).
    pub(super) fn child(&self, index: usize) -> Option<&Self> {
        if index >= self.child_count()? {
            return None;
        }
        // SAFETY: there are as many pointers as children; these live as long as this structure.
        unsafe { (*self.children.add(index)).as_ref() }
    }

    /// The first child that is not there, or has fewer rows than these.
    pub(super) fn short_child(&self, rows: usize) -> Option<usize> {
        let has_rows = |child: &Self| child.length_and_offset().is_some_and(|(length, _)| length >= rows);
        (0..self.child_count().unwrap_or(0)).find(|index| !self.child(*index).is_some_and(has_rows))
    }

    pub(super) fn dictionary(&self) -> Option<&Self> {
        // SAFETY: it lives as long as this structure.
        unsafe { self.dictionary.as_ref() }
    }

    /// The buffer of this number, with this many bytes. It keeps `owner`, which has this structure within itself. `None` if
    /// it is null, and so has no bytes.
    pub(super) fn buffer(&self, index: usize, bytes: usize, owner: &Arc<Self>) -> Option<Buffer> {
        if index >= self.buffer_count()? || isize::try_from(bytes).is_err() {
            return None;
        }
        // SAFETY: there are as many pointers as buffers.
        let start = unsafe { *self.buffers.add(index) };
        let start = NonNull::new(start.cast_mut().cast::<u8>())?;
        // Of a buffer without bytes the pointer may be anything.
        if bytes == 0 {
            return Some(MutableBuffer::new(0).into());
        }
        // SAFETY: the buffer has at least the bytes of the rows that the structure counts, as long as it is not released,
        // and that is done by the owner.
        Some(unsafe { Buffer::from_custom_allocation(start, bytes, Arc::clone(owner) as _) })
    }

    /// Ends it at once, the deepest child first.
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
    /// Moves the structure out of where the producer has it, which is released then.
    ///
    /// # Safety
    ///
    /// There is an `ArrowArrayStream`, of a producer as the module's documentation has it.
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

    /// Whether it has been read before.
    pub(super) fn is_released(&self) -> bool {
        self.release.is_none()
    }

    /// The schema, or what the producer says.
    pub(super) fn schema(&mut self) -> Result<CSchema, String> {
        let mut schema = CSchema::RELEASED;
        let get = self.get_schema.ok_or("the stream has no callback get_schema")?;
        // SAFETY: the callback is the stream's, and what it writes to is ours.
        let code = unsafe { get(self, &raw mut schema) };
        if code == 0 { Ok(schema) } else { Err(self.last_error(code)) }
    }

    /// The next array, which is [released](CArray::is_released) at the end, or what the producer says.
    pub(super) fn next(&mut self) -> Result<CArray, String> {
        let mut array = CArray::RELEASED;
        let get = self.get_next.ok_or("the stream has no callback get_next")?;
        // SAFETY: the callback is the stream's, and what it writes to is ours.
        let code = unsafe { get(self, &raw mut array) };
        if code == 0 { Ok(array) } else { Err(self.last_error(code)) }
    }

    fn last_error(&mut self, code: c_int) -> String {
        // SAFETY: the callback is the stream's, whose last call failed.
        let text = self.get_last_error.map_or(ptr::null(), |get| unsafe { get(self) });
        if text.is_null() {
            return std::io::Error::from_raw_os_error(code).to_string();
        }
        // SAFETY: a text that ends with a zero byte, which stays until the next call.
        lossy(unsafe { CStr::from_ptr(text) })
    }
}

impl Drop for CStream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the callback is called once, with the stream that it is in.
            unsafe { release(self) }
        }
    }
}

fn lossy(text: &CStr) -> String {
    text.to_string_lossy().into_owned()
}
