//! The few calls that rustix does not have: two socket options, a read that also returns when the
//! kernel received the bytes, and the settings of a network interface.

#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

#[cfg(target_os = "linux")]
use {libc::c_int, rustix::io::Errno, std::mem::MaybeUninit, std::os::fd::AsRawFd};

/// Leaves the choice of a port to `connect`, which has the destination: `bind` would have to find
/// one that no socket has, whatever its peer.
#[cfg(target_os = "linux")]
pub(crate) fn choose_port_at_connect(fd: &OwnedFd) -> rustix::io::Result<()> {
    set_option(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Not available here: `bind` chooses the port.
#[cfg(not(target_os = "linux"))]
pub(crate) fn choose_port_at_connect(_fd: &OwnedFd) -> rustix::io::Result<()> {
    Ok(())
}

/// Limits the ports that the kernel may choose for `fd` to those up to `last`, in its own range.
/// ENOPROTOOPT before Linux 6.3.
#[cfg(target_os = "linux")]
pub(crate) fn limit_ports(fd: &OwnedFd, last: u16) -> rustix::io::Result<()> {
    const IP_LOCAL_PORT_RANGE: c_int = 51;
    // The upper half is the last port, the lower one the first; 0: the system's setting.
    set_option(fd, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, (u32::from(last) << 16) as c_int)
}

/// Enables the stamps of [`recv_stamped`]. Accepted sockets inherit it from their listener.
#[cfg(target_os = "linux")]
pub(crate) fn stamp_received(fd: &OwnedFd) -> rustix::io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Not available here: nothing is stamped.
#[cfg(not(target_os = "linux"))]
pub(crate) fn stamp_received(_fd: &OwnedFd) -> rustix::io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn set_option(fd: &OwnedFd, level: c_int, option: c_int, value: c_int) -> rustix::io::Result<()> {
    // SAFETY: the kernel reads one `c_int` from a pointer to one, and `fd` is open.
    let outcome = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(last_error()) }
}

/// A setting of the interface `name` (`ioctl`; netdevice(7)): at most 24 bytes.
#[cfg(target_os = "linux")]
pub(crate) fn set_interface(
    fd: &OwnedFd,
    what: libc::Ioctl,
    name: &[u8],
    value: &[u8],
) -> rustix::io::Result<()> {
    /// `ifreq`, whose second half is a union.
    #[repr(C, align(8))]
    struct Request {
        name: [u8; libc::IFNAMSIZ],
        value: [u8; 24],
    }
    const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());
    let mut request = Request { name: [0; libc::IFNAMSIZ], value: [0; 24] };
    // The name ends with a zero.
    let place = request.name.get_mut(..name.len()).filter(|_| name.len() < libc::IFNAMSIZ);
    place.ok_or(Errno::NAMETOOLONG)?.copy_from_slice(name);
    request.value.get_mut(..value.len()).ok_or(Errno::INVAL)?.copy_from_slice(value);
    // SAFETY: the kernel reads and writes one `ifreq`, which `request` is by its layout; any bytes
    // are a value of it, and none of the calls used here keeps a pointer to it.
    let outcome = unsafe { libc::ioctl(fd.as_raw_fd(), what, &raw mut request) };
    if outcome == -1 { Err(last_error()) } else { Ok(()) }
}

/// Bytes of a control message that holds a `timespec`.
#[cfg(target_os = "linux")]
// SAFETY: arithmetic on its argument.
const CONTROL_BYTES: usize =
    unsafe { libc::CMSG_SPACE(size_of::<libc::timespec>() as u32) } as usize;

/// A buffer for control messages: they begin with a length, so they are aligned like one.
#[cfg(target_os = "linux")]
#[repr(C)]
union Control {
    bytes: [u8; CONTROL_BYTES],
    align: libc::cmsghdr,
}

/// Reads without waiting; returns the number of bytes, and when the kernel received the last
/// segment of them, in nanoseconds of CLOCK_REALTIME, if known.
#[cfg(target_os = "linux")]
pub(crate) fn recv_stamped(
    fd: &OwnedFd,
    buffer: &mut [u8],
) -> rustix::io::Result<(usize, Option<i64>)> {
    let mut control = MaybeUninit::<Control>::uninit();
    let mut slice = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all fields are integers or pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    // SAFETY: `message` points to one slice, which is `buffer`, and to `control`, with their true
    // lengths; all of them outlive the call, and nothing else refers to them meanwhile.
    let read = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let bytes = usize::try_from(read).map_err(|_| last_error())?;
    Ok((bytes, stamp_of(&message)))
}

#[cfg(target_os = "linux")]
fn stamp_of(message: &libc::msghdr) -> Option<i64> {
    // SAFETY: `recvmsg` has set the control buffer's length to what it wrote there; the buffer is
    // still alive, being a local of the only caller. CMSG_FIRSTHDR is null unless a whole header
    // is there.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    // SAFETY: arithmetic on its argument.
    let whole = unsafe { libc::CMSG_LEN(size_of::<libc::timespec>() as u32) } as usize;
    if header.cmsg_level != libc::SOL_SOCKET
        || header.cmsg_type != libc::SCM_TIMESTAMPNS
        || (header.cmsg_len as usize) < whole
    {
        return None;
    }
    // SAFETY: the header says that a `timespec` follows it, and the kernel wrote it; the data of a
    // control message need not be aligned for it, hence `read_unaligned`.
    let time = unsafe { libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned() };
    Some(time.tv_sec * 1_000_000_000 + time.tv_nsec)
}

/// Reads without waiting; there are no stamps here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn recv_stamped(
    fd: &OwnedFd,
    buffer: &mut [u8],
) -> rustix::io::Result<(usize, Option<i64>)> {
    let (bytes, _) = rustix::net::recv(fd, buffer, rustix::net::RecvFlags::DONTWAIT)?;
    Ok((bytes, None))
}

#[cfg(target_os = "linux")]
fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
