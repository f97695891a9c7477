//! How a function becomes a symbol of the library, twice as in NCCL.

/// Defines C functions. Each has NCCL's name, and a second symbol with a `p` in front: a profiler may define the first
/// and call the second.
macro_rules! exported {
    ($(
        $(#[$attribute:meta])*
        $profiled:literal fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $kind),*) $(-> $result)? $body

        const _: () = {
            $(#[$attribute])*
            #[unsafe(export_name = $profiled)]
            extern "C" fn profiled($($argument: $kind),*) $(-> $result)? {
                $name($($argument),*)
            }
        };
    )*};
}
