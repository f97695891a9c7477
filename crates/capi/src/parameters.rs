//! C functions that read what the environment configures: the variables of netsum, and those of NCCL that apply here.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use netsum_nccl_core::{Code, Failure, SETTINGS};

use crate::pointers::{read_text, write, write_bytes};
use crate::result::call;

/// Texts that the library handed to this thread; each is valid until the next call of the same function.
#[derive(Default)]
struct Texts {
    of_handle: CString,
    of_key: CString,
    keys: Vec<*const c_char>,
}

thread_local! {
    static TEXTS: RefCell<Texts> = RefCell::default();
}

/// `ncclParamHandle_t`: the number of a parameter, from 1.
type Parameter = usize;

exported! {
    /// The handle of a parameter.
    "pncclParamBind" fn ncclParamBind(parameter: *mut Parameter, key: *const c_char) -> Code {
        call(|| {
            write(parameter, 0, "out")?;
            write(parameter, position(&read_text(key, "key")?)? + 1, "out")
        })
    }

    /// The value as a text.
    "pncclParamGetStr" fn ncclParamGetStr(parameter: Parameter, text: *mut *const c_char) -> Code {
        call(|| {
            let value = c_text(&value(parameter)?);
            let start = TEXTS.with(|texts| {
                texts.borrow_mut().of_handle = value;
                texts.borrow().of_handle.as_ptr()
            });
            write(text, start, "out")
        })
    }

    /// The bytes of the value as a text, without a zero at the end.
    "pncclParamGet" fn ncclParamGet(
        parameter: Parameter,
        out: *mut c_void,
        most: c_int,
        len: *mut c_int,
    ) -> Code {
        call(|| {
            let value = value(parameter)?;
            write(len, value.len() as c_int, "len")?;
            if usize::try_from(most).unwrap_or(0) < value.len() {
                return Err(Failure::argument(format!("the value has {} bytes, maxLen is {most}", value.len())));
            }
            write_bytes(out.cast(), value.as_bytes(), "out")
        })
    }

    /// The value of a key as a text, and its length.
    "pncclParamGetParameter" fn ncclParamGetParameter(
        key: *const c_char,
        text: *mut *const c_char,
        len: *mut c_int,
    ) -> Code {
        call(|| {
            let value = c_text(&value(position(&read_text(key, "key")?)? + 1)?);
            write(len, value.as_bytes().len() as c_int, "valueLen")?;
            let start = TEXTS.with(|texts| {
                texts.borrow_mut().of_key = value;
                texts.borrow().of_key.as_ptr()
            });
            write(text, start, "value")
        })
    }

    /// All keys.
    "pncclParamGetAllParameterKeys" fn ncclParamGetAllParameterKeys(
        table: *mut *const *const c_char,
        len: *mut c_int,
    ) -> Code {
        call(|| {
            write(len, KEYS.len() as c_int, "tableLen")?;
            let start = TEXTS.with(|texts| {
                texts.borrow_mut().keys = KEYS.iter().map(|key| key.as_ptr()).collect();
                texts.borrow().keys.as_ptr()
            });
            write(table, start, "table")
        })
    }

    /// Writes all parameters to the standard error output.
    "pncclParamDumpAll" fn ncclParamDumpAll() {
        for (at, key) in KEYS.iter().enumerate() {
            if let Ok(value) = value(at + 1) {
                eprintln!("{}={value}", key.to_string_lossy());
            }
        }
    }
}

/// Functions that read a value as a number.
macro_rules! numbers {
    ($($profiled:literal $name:ident $kind:ty;)*) => {
        exported! {$(
            /// The value as a number of this type. Refuses one that is not set, or none.
            $profiled fn $name(parameter: Parameter, out: *mut $kind) -> Code {
                call(|| {
                    let value = value(parameter)?;
                    let number = value.trim().parse::<$kind>().map_err(|_| {
                        Failure::argument(format!("the value {value:?} is no number of the type {}", stringify!($kind)))
                    })?;
                    write(out, number, "out")
                })
            }
        )*}
    };
}

numbers! {
    "pncclParamGetI8" ncclParamGetI8 i8;
    "pncclParamGetI16" ncclParamGetI16 i16;
    "pncclParamGetI32" ncclParamGetI32 i32;
    "pncclParamGetI64" ncclParamGetI64 i64;
    "pncclParamGetU8" ncclParamGetU8 u8;
    "pncclParamGetU16" ncclParamGetU16 u16;
    "pncclParamGetU32" ncclParamGetU32 u32;
    "pncclParamGetU64" ncclParamGetU64 u64;
}

fn position(key: &str) -> Result<usize, Failure> {
    let found = KEYS.iter().position(|known| known.to_bytes() == key.as_bytes());
    found.ok_or_else(|| Failure::argument(format!("{key} is no parameter of netsum")))
}

/// The value in the environment; empty if it is not set.
fn value(parameter: Parameter) -> Result<String, Failure> {
    let key = parameter.checked_sub(1).and_then(|at| KEYS.get(at));
    let key = key.ok_or_else(|| Failure::argument("the handle is not of ncclParamBind"))?;
    Ok(std::env::var(key.to_string_lossy().as_ref()).unwrap_or_default())
}

fn c_text(value: &str) -> CString {
    CString::new(value).unwrap_or_default()
}

/// Every variable that the library reads.
const KEYS: [&CStr; SETTINGS.len() + 1] = {
    let mut keys = [c"NCCL_COMM_ID"; SETTINGS.len() + 1];
    let mut at = 0;
    while at < SETTINGS.len() {
        keys[at] = SETTINGS[at];
        at += 1;
    }
    keys
};
