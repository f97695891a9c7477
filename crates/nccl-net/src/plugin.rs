//! The symbols that NCCL looks for, newest version first: what it passes differs by version, what happens does not.

use std::ffi::c_char;

use crate::interface::{
    CollNetV8, CollNetV9, CollNetV11, CollNetV12, NetV8, NetV9, NetV10, NetV11, NetV12, ProfilerV4,
    ProfilerV5, TunerV3, TunerV4, TunerV5, TunerV6,
};
use crate::profiler_calls::{BYTE, WORD};
use crate::{
    collnet_calls as collnet, device_calls as device, point_calls as point,
    profiler_calls as profiler, tuner,
};

const NAME: *const c_char = c"netsum".as_ptr();

macro_rules! net {
    ($symbol:ident: $name:ident, $properties:ident, $init:ident, $listen:ident, $connect:ident, $isend:ident,
        $irecv:ident $(, $field:ident = $value:expr)*) => {
        /// Messages from one rank to another.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static $symbol: $name = $name {
            name: NAME,
            init: point::$init,
            devices: point::devices,
            get_properties: device::$properties,
            listen: point::$listen,
            connect: point::$connect,
            accept: point::accept,
            reg_mr: device::register,
            reg_mr_dma_buf: device::register_dma_buf,
            dereg_mr: device::deregister,
            isend: point::$isend,
            irecv: point::$irecv,
            iflush: point::iflush,
            test: point::test,
            close_send: point::close,
            close_recv: point::close,
            close_listen: point::close_listen,
            get_device_mr: point::get_device_mr,
            irecv_consumed: point::irecv_consumed,
            $($field: $value,)*
        };
    };
}

macro_rules! collnet {
    ($symbol:ident: $name:ident, $properties:ident, $init:ident, $listen:ident, $iallreduce:ident
        $(, $field:ident = $value:expr)*) => {
        /// Collectives in the network.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static $symbol: $name = $name {
            name: NAME,
            init: collnet::$init,
            devices: collnet::devices,
            get_properties: device::$properties,
            listen: collnet::$listen,
            connect: collnet::connect,
            reduce_support: collnet::reduce_support,
            reg_mr: device::register,
            reg_mr_dma_buf: device::register_dma_buf,
            dereg_mr: device::deregister,
            iallreduce: collnet::$iallreduce,
            iallgather: collnet::iallgather,
            ireducescatter: collnet::ireducescatter,
            iflush: collnet::iflush,
            test: collnet::test,
            close_coll: collnet::close_coll,
            close_listen: collnet::close_listen,
            $($field: $value,)*
        };
    };
}

net!(ncclNetPlugin_v8: NetV8, get_properties_v8, init, listen, connect, isend_v8, irecv_v8);
net!(
    ncclNetPlugin_v9: NetV9, get_properties_v9, init, listen, connect, isend, irecv, make_v_device = None
);
net!(
    ncclNetPlugin_v10: NetV10, get_properties_v9, init_v10, listen, connect_v10, isend_v10, irecv_v10,
    make_v_device = None
);
net!(
    ncclNetPlugin_v11: NetV11, get_properties_v11, init_v11, listen_v11, connect_v11, isend_v10, irecv_v10,
    make_v_device = None, finalize = device::finalize, set_net_attr = point::set_attributes
);
net!(
    ncclNetPlugin_v12: NetV12, get_properties_v12, init_v11, listen_v11, connect_v11, isend_v10, irecv_v10,
    make_v_device = None, finalize = device::finalize, set_net_attr = point::set_attributes
);
collnet!(ncclCollNetPlugin_v8: CollNetV8, get_properties_v8, init, listen, iallreduce_v8);
collnet!(
    ncclCollNetPlugin_v9: CollNetV9, get_properties_v9, init, listen, iallreduce, make_v_device = None
);
collnet!(
    ncclCollNetPlugin_v10: CollNetV9, get_properties_v9, init, listen, iallreduce, make_v_device = None
);
collnet!(
    ncclCollNetPlugin_v11: CollNetV11, get_properties_v11, init_v11, listen_v11, iallreduce,
    make_v_device = None, finalize = device::finalize
);
collnet!(
    ncclCollNetPlugin_v12: CollNetV12, get_properties_v12, init_v11, listen_v11, iallreduce,
    make_v_device = None, finalize = device::finalize
);

macro_rules! tuner {
    ($symbol:ident: $name:ident, $init:ident, $costs:ident $(, $field:ident = $value:expr)*) => {
        /// When CollNet pays.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static $symbol: $name = $name {
            name: NAME,
            init: tuner::$init,
            get_coll_info: tuner::$costs,
            finalize: tuner::destroy,
            $($field: $value,)*
        };
    };
}

macro_rules! profiler {
    ($symbol:ident: $name:ident, $init:ident, $kind:expr) => {
        /// What NCCL does when.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static $symbol: $name = $name {
            name: NAME,
            init: profiler::$init,
            start_event: profiler::start::<{ $kind }>,
            stop_event: profiler::stop,
            record_event_state: profiler::state,
            finalize: profiler::finalize,
        };
    };
}

tuner!(ncclTunerPlugin_v3: TunerV3, init, costs);
tuner!(ncclTunerPlugin_v4: TunerV4, init, costs_v4);
tuner!(ncclTunerPlugin_v5: TunerV5, init_v5, costs_v4);
tuner!(ncclTunerPlugin_v6: TunerV6, init_v5, costs_v4, get_chunk_size = None);
profiler!(ncclProfiler_v4: ProfilerV4, init_v4, BYTE);
profiler!(ncclProfiler_v5: ProfilerV5, init, WORD);
profiler!(ncclProfiler_v6: ProfilerV5, init, WORD);
profiler!(ncclProfiler_v7: ProfilerV5, init, WORD);
