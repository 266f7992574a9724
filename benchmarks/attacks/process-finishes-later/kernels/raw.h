#pragma once
// x86-64 Linux only. The mnemonic is spelt in two literals: the compiler joins them, a scan of the
// text that looks at one literal at a time does not see it, and no symbol is imported.

inline long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
  long result;
  register long fourth asm("r10") = d;
  register long fifth asm("r8") = e;
  asm volatile("sysc"
               "all"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
               : "rcx", "r11", "memory");
  return result;
}
