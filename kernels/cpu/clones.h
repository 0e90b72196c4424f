// Loops compiled several times, the best chosen at load time: AVX-512, AVX2 with FMA, and plain x86-64.
#pragma once

/// Marks a function whose loops carry `#pragma omp simd`. What it calls must be inlined
/// (`[[gnu::always_inline]]`), since only then is it compiled for the same instructions. Under
/// ThreadSanitizer there is one plain version: its run time is not up yet when the loader resolves the
/// choice.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__)
#define SHARDWRIGHT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SHARDWRIGHT_CLONES
#endif
