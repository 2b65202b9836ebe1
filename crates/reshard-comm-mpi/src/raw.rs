//! The calls of MPI that the comm thread makes, and all unsafe code of this crate.
//!
//! Nothing here waits. A request that is dropped before it is done leaves its memory to MPI for good, because MPI may
//! still use it.

#![expect(unsafe_code, reason = "MPI is a C library")]

use crate::{MpiError, Result, wire};
use bytes::Bytes;
use mpi::{ffi, raw::AsRaw};
use std::{
    ffi::{c_int, c_void},
    marker::PhantomData,
    mem::ManuallyDrop,
    ops::Range,
};

/// The number of a communicator, by which another thread of the process finds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle(ffi::RSMPI_Fint);

impl Handle {
    /// That of a communicator of the job. MPI must be initialized.
    pub(crate) fn of(comm: &impl AsRaw<Raw = ffi::MPI_Comm>) -> Self {
        // SAFETY: this is a live communicator, because `AsRaw` is an unsafe trait; the function only converts.
        Self(unsafe { ffi::RSMPI_Comm_c2f(comm.as_raw()) })
    }

    /// That of all processes. MPI must be initialized.
    pub(crate) fn of_all() -> Self {
        // SAFETY: it is a constant of the library.
        Self(unsafe { ffi::RSMPI_Comm_c2f(ffi::RSMPI_COMM_WORLD) })
    }
}

/// A duplicate of a communicator that is being made.
pub(crate) struct Duplicating {
    request: Request,
    /// MPI writes here, so it stays where it is.
    made: ManuallyDrop<Box<ffi::MPI_Comm>>,
}

impl Duplicating {
    /// All processes of the communicator do this.
    ///
    /// # Errors
    /// The communicator joins two groups, or MPI refuses.
    pub(crate) fn start(handle: Handle) -> Result<Self> {
        let mut inter = 0;
        // SAFETY: the communicator is live, as its owner promised.
        let comm = unsafe { ffi::RSMPI_Comm_f2c(handle.0) };
        // SAFETY: as above; `inter` is written during the call.
        let code = unsafe { ffi::MPI_Comm_test_inter(comm, &raw mut inter) };
        check(code, "MPI_Comm_test_inter")?;
        if inter != 0 {
            return Err(MpiError::Setting(
                "the group needs an intra-communicator, and this one joins two groups; merge them \
                 (MPI_Intercomm_merge)"
                    .to_owned(),
            ));
        }
        // SAFETY: a constant of the library.
        let mut made = ManuallyDrop::new(Box::new(unsafe { ffi::RSMPI_COMM_NULL }));
        let mut request = Request::none();
        // SAFETY: MPI writes to `made` until the request is done. It is not freed before.
        let code = unsafe { ffi::MPI_Comm_idup(comm, &raw mut **made, &raw mut request.raw) };
        check(code, "MPI_Comm_idup")?;
        Ok(Self { request, made })
    }

    /// The duplicate, if it is made.
    ///
    /// # Errors
    /// MPI refuses.
    pub(crate) fn poll(&mut self) -> Result<Option<Comm>> {
        if self.request.test("MPI_Comm_idup")?.is_none() {
            return Ok(None);
        }
        let comm = Comm {
            raw: **self.made,
            one_thread: PhantomData,
        };
        // SAFETY: the communicator is live. From now on its errors are returned; before, they would end the job.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(comm.raw, ffi::RSMPI_ERRORS_RETURN) };
        check(code, "MPI_Comm_set_errhandler")?;
        Ok(Some(comm))
    }
}

/// A communicator of this crate alone. It stays on the thread that made it.
pub(crate) struct Comm {
    raw: ffi::MPI_Comm,
    one_thread: PhantomData<*const ()>,
}

impl Comm {
    /// The number of this process in it, and how many there are.
    ///
    /// # Errors
    /// MPI refuses.
    pub(crate) fn place(&self) -> Result<(u32, u32)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator is live; the numbers are written during the calls.
        let code = unsafe { ffi::MPI_Comm_rank(self.raw, &raw mut rank) };
        check(code, "MPI_Comm_rank")?;
        // SAFETY: as above.
        let code = unsafe { ffi::MPI_Comm_size(self.raw, &raw mut size) };
        check(code, "MPI_Comm_size")?;
        let number = |n| u32::try_from(n).map_err(|_| odd("MPI_Comm_size", "a negative number"));
        Ok((number(rank)?, number(size)?))
    }

    /// Frees it. All processes do this, when nothing is on its way.
    ///
    /// # Errors
    /// MPI refuses.
    pub(crate) fn free(mut self) -> Result<()> {
        // SAFETY: the communicator is live, and nobody has it after this.
        check(
            unsafe { ffi::MPI_Comm_free(&raw mut self.raw) },
            "MPI_Comm_free",
        )
    }
}

/// Bytes on their way to another rank.
pub(crate) struct Sending {
    request: Request,
    bytes: ManuallyDrop<Bytes>,
    done: bool,
}

impl Sending {
    /// # Errors
    /// MPI refuses.
    pub(crate) fn start(comm: &Comm, bytes: Bytes, to: u32, tag: c_int) -> Result<Self> {
        let mut sending = Self {
            request: Request::none(),
            bytes: ManuallyDrop::new(bytes),
            done: false,
        };
        let (to, count) = (count(to as usize)?, count(sending.bytes.len())?);
        let from: *const c_void = sending.bytes.as_ptr().cast();
        // SAFETY: `from` has `count` bytes. They don't move, and are freed only after the request is done.
        let code = unsafe {
            let byte = ffi::RSMPI_UINT8_T;
            ffi::MPI_Isend(
                from,
                count,
                byte,
                to,
                tag,
                comm.raw,
                &raw mut sending.request.raw,
            )
        };
        check(code, "MPI_Isend")?;
        Ok(sending)
    }

    /// Whether MPI does not need the bytes any more.
    ///
    /// # Errors
    /// They can't be sent.
    pub(crate) fn is_done(&mut self) -> Result<bool> {
        self.done = self.done || self.request.test("MPI_Isend")?.is_some();
        Ok(self.done)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if self.done {
            // SAFETY: it is dropped once, here, and MPI does not use it any more.
            unsafe { ManuallyDrop::drop(&mut self.bytes) };
        }
    }
}

/// A buffer that waits for a short message of any rank.
pub(crate) struct Listening {
    request: Request,
    buffer: ManuallyDrop<Box<[u8]>>,
    done: bool,
}

impl Listening {
    /// # Errors
    /// MPI refuses.
    pub(crate) fn start(comm: &Comm, tag: c_int) -> Result<Self> {
        let buffer = vec![0; wire::HEAD + wire::INLINE].into_boxed_slice();
        let mut listening = Self {
            request: Request::none(),
            buffer: ManuallyDrop::new(buffer),
            done: true,
        };
        listening.again(comm, tag)?;
        Ok(listening)
    }

    /// The message that has come, and its sender. Call [`again`](Self::again) for the next one.
    ///
    /// # Errors
    /// MPI can't receive it.
    pub(crate) fn poll(&mut self) -> Result<Option<(u32, &[u8])>> {
        let Some(status) = self.request.test("MPI_Irecv")? else {
            return Ok(None);
        };
        self.done = true;
        let (from, length) = (status.source()?, status.count()?);
        let bytes = self.buffer.get(..length);
        bytes
            .map(|bytes| Some((from, bytes)))
            .ok_or_else(|| odd("MPI_Irecv", "more bytes than there is room for"))
    }

    /// Waits for the next message. The last one must have been polled.
    ///
    /// # Errors
    /// MPI refuses, or the last message has not come.
    pub(crate) fn again(&mut self, comm: &Comm, tag: c_int) -> Result<()> {
        if !self.done {
            return Err(odd("MPI_Irecv", "a buffer in use"));
        }
        let room = count(self.buffer.len())?;
        let to: *mut c_void = self.buffer.as_mut_ptr().cast();
        // SAFETY: `to` has room for so many bytes. They don't move, and are freed only after the request is done.
        let code = unsafe {
            let (byte, any) = (ffi::RSMPI_UINT8_T, ffi::RSMPI_ANY_SOURCE);
            ffi::MPI_Irecv(
                to,
                room,
                byte,
                any,
                tag,
                comm.raw,
                &raw mut self.request.raw,
            )
        };
        check(code, "MPI_Irecv")?;
        self.done = false;
        Ok(())
    }

    /// Asks MPI to forget the buffer.
    ///
    /// # Errors
    /// MPI refuses.
    pub(crate) fn cancel(&mut self) -> Result<()> {
        const TRIES: usize = 1000;
        if self.done {
            return Ok(());
        }
        // SAFETY: the request is live, because it is not done.
        let code = unsafe { ffi::MPI_Cancel(&raw mut self.request.raw) };
        check(code, "MPI_Cancel")?;
        for _ in 0..TRIES {
            if self.request.test("MPI_Cancel")?.is_some() {
                self.done = true;
                break;
            }
        }
        Ok(())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.done {
            // SAFETY: it is dropped once, here, and MPI does not use it any more.
            unsafe { ManuallyDrop::drop(&mut self.buffer) };
        }
    }
}

/// A message that arrives in parts, in any order.
pub(crate) struct Receiving {
    buffer: ManuallyDrop<Vec<u8>>,
    length: usize,
    part: usize,
    /// How many parts MPI was asked for.
    asked: usize,
    /// Whether it can't become whole.
    spoilt: bool,
    waiting: Vec<(Range<usize>, Request)>,
}

impl Receiving {
    /// How many parts MPI is asked for at a time.
    const WINDOW: usize = 16;

    /// Takes memory for a message that begins with these bytes.
    ///
    /// # Errors
    /// There is not so much memory.
    pub(crate) fn new(first: &[u8], length: usize, part: usize) -> Result<Self, String> {
        if first.len() != length.min(wire::INLINE) {
            return Err("sent a message of no known kind".to_owned());
        }
        let mut buffer = Vec::new();
        let room = buffer.try_reserve_exact(length);
        room.map_err(|_| {
            format!("sent a message of {length} bytes, for which there is no memory")
        })?;
        buffer.extend_from_slice(first);
        Ok(Self {
            buffer: ManuallyDrop::new(buffer),
            length,
            part,
            asked: 0,
            spoilt: false,
            waiting: Vec::new(),
        })
    }

    /// Asks MPI for more parts of rank `from`. Returns whether it was asked for all.
    ///
    /// # Errors
    /// MPI refuses.
    pub(crate) fn ask(&mut self, comm: &Comm, from: u32, tag: c_int) -> Result<bool> {
        while self.waiting.len() < Self::WINDOW {
            let Some(range) = wire::part_at(self.length, self.part, self.asked) else {
                return Ok(true);
            };
            let mut request = Request::none();
            let (from, room) = (count(from as usize)?, count(range.len())?);
            // SAFETY: the range lies in the buffer, whose capacity is `length` at least.
            let to: *mut c_void = unsafe { self.buffer.as_mut_ptr().add(range.start) }.cast();
            // SAFETY: `to` has room for so many bytes, in which no other part lies. The buffer neither grows nor is freed
            // before the request is done.
            let code = unsafe {
                let byte = ffi::RSMPI_UINT8_T;
                ffi::MPI_Irecv(to, room, byte, from, tag, comm.raw, &raw mut request.raw)
            };
            check(code, "MPI_Irecv")?;
            self.waiting.push((range, request));
            self.asked += 1;
        }
        Ok(self.asked == wire::count_parts(self.length, self.part))
    }

    /// Looks which parts have come. Returns how many.
    ///
    /// # Errors
    /// MPI can't receive one, or it is not as long as it should be.
    pub(crate) fn poll(&mut self) -> Result<usize> {
        let before = self.waiting.len();
        let mut at = 0;
        while let Some((range, request)) = self.waiting.get_mut(at) {
            let Some(status) = request.test("MPI_Irecv")? else {
                at += 1;
                continue;
            };
            let (wanted, got) = (range.len(), status.count()?);
            self.waiting.swap_remove(at);
            if got != wanted {
                self.spoilt = true;
                return Err(odd("MPI_Irecv", "a part of another length"));
            }
        }
        Ok(before - self.waiting.len())
    }

    /// The message, if all parts have come.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        let all = wire::count_parts(self.length, self.part);
        if self.spoilt || self.asked < all || !self.waiting.is_empty() {
            return None;
        }
        // It is taken once.
        self.spoilt = true;
        let mut whole = std::mem::take(&mut *self.buffer);
        // SAFETY: the capacity is at least `length`. The first bytes were copied, and the parts are all of the rest.
        unsafe { whole.set_len(self.length) };
        Some(whole.into())
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        if self.waiting.is_empty() {
            // SAFETY: it is dropped once, here, and MPI does not use it any more.
            unsafe { ManuallyDrop::drop(&mut self.buffer) };
        }
    }
}

struct Request {
    raw: ffi::MPI_Request,
}

impl Request {
    fn none() -> Self {
        // SAFETY: a constant of the library.
        let raw = unsafe { ffi::RSMPI_REQUEST_NULL };
        Self { raw }
    }

    /// The status, if the request is done.
    fn test(&mut self, doing: &'static str) -> Result<Option<Status>> {
        let mut done = 0;
        // SAFETY: a status is made of numbers, for which zeros are valid.
        let mut status: ffi::MPI_Status = unsafe { std::mem::zeroed() };
        // SAFETY: the request is live or null; the others are written during the call.
        let code = unsafe { ffi::MPI_Test(&raw mut self.raw, &raw mut done, &raw mut status) };
        check(code, doing)?;
        Ok((done != 0).then_some(Status(status)))
    }
}

struct Status(ffi::MPI_Status);

impl Status {
    fn source(&self) -> Result<u32> {
        u32::try_from(self.0.MPI_SOURCE).map_err(|_| odd("MPI_Test", "a message of nobody"))
    }

    fn count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the status is that of a receive of bytes; `count` is written during the call.
        let code =
            unsafe { ffi::MPI_Get_count(&raw const self.0, ffi::RSMPI_UINT8_T, &raw mut count) };
        check(code, "MPI_Get_count")?;
        usize::try_from(count).map_err(|_| odd("MPI_Get_count", "a negative count"))
    }
}

fn count(length: usize) -> Result<c_int> {
    c_int::try_from(length).map_err(|_| odd("counting bytes", "a number beyond 32 bits"))
}

fn odd(doing: &'static str, what: &str) -> MpiError {
    MpiError::Mpi {
        doing,
        message: format!("it gave {what}"),
    }
}

fn check(code: c_int, doing: &'static str) -> Result<()> {
    // Longer than any library's MPI_MAX_ERROR_STRING.
    const ROOM: usize = 8192;
    if code == 0 {
        return Ok(());
    }
    let (mut text, mut length) = (vec![0_u8; ROOM], 0);
    // SAFETY: there is room for the longest text.
    let said = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &raw mut length) };
    let length = usize::try_from(length).unwrap_or(0);
    let message = match text.get(..length) {
        Some(text) if said == 0 && length > 0 => String::from_utf8_lossy(text).into_owned(),
        _ => format!("error {code}"),
    };
    Err(MpiError::Mpi { doing, message })
}
