// The judge's own kernels. They run in the judge's context only; no runner loads this file.
#include <stdint.h>

// A well mixed word of (seed, index), so that any element of a slot can be written on its own.
__device__ uint64_t mixed(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Four pieces of `from` in another order: piece p of `to` starts at `to_start[p]` and holds what
// starts at `from_start[p]`. In every chunk of 2048 elements one is a random other of the tensor.
struct Pieces {
  uint64_t to_start[4];
  uint64_t from_start[4];
};

constexpr uint64_t kChunk = 2048;

template <typename Word>
__device__ void renew(Word* to, const Word* from, uint64_t size, Pieces pieces, uint64_t seed) {
  // One block takes one chunk at a time, so that a draw is paid once for several elements.
  for (uint64_t first = blockIdx.x * kChunk; first < size; first += gridDim.x * kChunk) {
    const uint64_t end = first + kChunk < size ? first + kChunk : size;
    const uint64_t draw = mixed(seed, first);
    const uint64_t exchanged = first + draw % (uint32_t)(end - first);
    for (uint64_t i = first + threadIdx.x; i < end; i += blockDim.x) {
      int p = 0;
#pragma unroll
      for (int q = 1; q < 4; ++q) p = i >= pieces.to_start[q] ? q : p;
      uint64_t j = i - pieces.to_start[p] + pieces.from_start[p];
      if (i == exchanged) j = mixed(~seed, draw) % size;
      to[i] = from[j];
    }
  }
}

#define RENEW(name, Word)                                                                    \
  extern "C" __global__ void name(Word* to, const Word* from, uint64_t size, Pieces pieces,  \
                                  uint64_t seed) {                                           \
    renew(to, from, size, pieces, seed);                                                     \
  }
RENEW(renew_1, uint8_t)
RENEW(renew_2, uint16_t)
RENEW(renew_4, uint32_t)
RENEW(renew_8, uint64_t)

// Keep one thread busy for a time: the filler and, in tests, a foreign kernel.
extern "C" __global__ void spin(uint64_t nanoseconds) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - start < nanoseconds);
}

// A fixed amount of work for one thread: the probe, which waits for its turn when it must share.
extern "C" __global__ void work(uint64_t rounds, uint64_t* sink) {
  uint64_t word = rounds;
  for (uint64_t i = 0; i < rounds; ++i) word = mixed(word, i);
  *sink = word;
}
