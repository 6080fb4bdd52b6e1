//! Calls the library's command line.

/// glibc's allocator keeps the memory of clients that have gone: some small allocation between
/// theirs is always in use.
#[cfg(feature = "jemalloc")]
mod allocator {
    use tikv_jemalloc_ctl::{Access, AsName, background_thread};
    use tikv_jemallocator::Jemalloc;

    #[global_allocator]
    static ALLOCATOR: Jemalloc = Jemalloc;

    /// How long unused memory is kept before it goes back to the system, milliseconds.
    const DECAY_MS: isize = 1000;

    /// Where the system does not allow these settings, unused memory is kept for longer.
    pub(super) fn set_decay() {
        let _ = background_thread::write(true);
        for arenas in ["arenas.dirty_decay_ms\0", "arena.0.dirty_decay_ms\0"] {
            let _ = arenas.name().write(DECAY_MS);
        }
    }
}

fn main() -> std::process::ExitCode {
    #[cfg(feature = "jemalloc")]
    allocator::set_decay();
    tidegate::cli::main()
}
