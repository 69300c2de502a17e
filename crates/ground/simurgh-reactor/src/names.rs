//! Name service of a binary that is linked to the C library statically.

#![allow(unsafe_code)]

/// Limits name lookups to /etc/hosts and DNS, whatever /etc/nsswitch.conf says, where the binary is
/// linked to glibc statically; elsewhere it does nothing. Call it before any thread is started and
/// any name is looked up.
///
/// Other sources (mdns, resolve, myhostname, LDAP) are plug-ins that glibc would load into the
/// process with a second C library, which works only with the very version that is linked, and may
/// crash otherwise. The remaining two are part of glibc itself since 2.34.
pub fn use_built_in_name_services() {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
    for (database, services) in [(c"hosts", c"files dns"), (c"services", c"files"), USERS] {
        // SAFETY: both are texts that end in a zero byte and live for ever; nothing else runs yet.
        // A refusal leaves what was there.
        let _ = unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
    }
}

/// For the home directory of a user without HOME.
#[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
const USERS: (&std::ffi::CStr, &std::ffi::CStr) = (c"passwd", c"files");

#[cfg(all(target_os = "linux", target_env = "gnu", target_feature = "crt-static"))]
// SAFETY: the signature is that of glibc's `nss.h`, there since 2.0.
unsafe extern "C" {
    fn __nss_configure_lookup(
        database: *const std::ffi::c_char,
        services: *const std::ffi::c_char,
    ) -> std::ffi::c_int;
}
