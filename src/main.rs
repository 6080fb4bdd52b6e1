//! The door: hands over to the library's command line.

use tikv_jemalloc_ctl::{Access, AsName, background_thread};
use tikv_jemallocator::Jemalloc;

/// The C library's allocator keeps what thousands of clients had once for the rest of the process's
/// life: in between is always something small that is still in use.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// How long memory that is not in use is kept before the system has it back.
const KEPT_MS: isize = 1000;

fn main() -> std::process::ExitCode {
    give_back();
    tidegate::cli::main()
}

/// Where a system does not allow it, memory is kept for longer.
fn give_back() {
    let _ = background_thread::write(true);
    for arenas in ["arenas.dirty_decay_ms\0", "arena.0.dirty_decay_ms\0"] {
        let _ = arenas.name().write(KEPT_MS);
    }
}
