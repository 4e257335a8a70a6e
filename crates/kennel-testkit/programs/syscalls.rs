//! Makes system calls by their numbers: `calls NUMBER:ARGUMENT:… …` prints a line for each, `ok` or the error number.
//! With `32:` before the number, it makes the call of 32-bit programs on x86_64.

// SAFETY: as the C library declares them.
unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
}

fn main() {
    for word in std::env::args().skip(1) {
        let mut numbers: Vec<i64> = word.split(':').map(|number| number.parse().expect("a number")).collect();
        let narrow = word.starts_with("32:");
        if narrow {
            numbers.remove(0);
        }
        numbers.resize(7, 0);
        let answer = if narrow { call_32(&numbers) } else { call(&numbers) };
        if answer == 0 { println!("ok") } else { println!("{answer}") }
    }
}

fn call(numbers: &[i64]) -> i64 {
    let [number, a, b, c, d, e, f] = numbers[..] else { unreachable!() };
    // SAFETY: the arguments are numbers that point to no memory of this program.
    let answer = unsafe { syscall(number, a, b, c, d, e, f) };
    if answer < 0 { std::io::Error::last_os_error().raw_os_error().unwrap_or(-1).into() } else { 0 }
}

#[cfg(target_arch = "x86_64")]
fn call_32(numbers: &[i64]) -> i64 {
    let answer: i64;
    // SAFETY: the arguments are numbers that point to no memory of this program. rbx, which must not be named, is
    // restored.
    unsafe {
        std::arch::asm!(
            "xchg {first}, rbx",
            "int 0x80",
            "xchg {first}, rbx",
            first = inout(reg) numbers[1] => _,
            inlateout("rax") numbers[0] => answer,
            in("rcx") numbers[2],
            in("rdx") numbers[3],
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _,
        );
    }
    let answer = i64::from(answer as i32);
    if answer < 0 { -answer } else { 0 }
}

#[cfg(not(target_arch = "x86_64"))]
fn call_32(_: &[i64]) -> i64 {
    -1
}
