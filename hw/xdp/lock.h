// Locks of slots.
#pragma once

#include <linux/types.h>

// A lock is held for about a microsecond, without interruption by another packet on the same processor.
#define SPINS 2048

static __always_inline _Bool lock(__u32 *lock)
{
	_Bool got = 0;
	for (int i = 0; i < SPINS && !got; i++)
		got = !__sync_lock_test_and_set(lock, 1);
	// The verifier would tell the tries apart from then on if the compiler concluded this from their number.
	asm volatile("" : "+r"(got));
	return got;
}

static __always_inline void unlock(__u32 *lock)
{
#if defined(__TARGET_ARCH_x86)
	// Stores are not reordered with earlier ones there; elsewhere the exchange is the barrier.
	*(volatile __u32 *)lock = 0;
#else
	__sync_lock_test_and_set(lock, 0);
#endif
}
