// A static program with a runtime of its own: raw system calls, a collector that walks through its
// memory, threads that it makes itself. Every word must hold what was written to it.
//
//	memory MIB ROUNDS
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
)

const words = 1 << 17 // a MiB of 8 bytes each

func fill(seed uint64) []uint64 {
	part := make([]uint64, words)
	for i := range part {
		// Half of each page compresses.
		if i%512 < 256 {
			part[i] = seed*2654435761 + uint64(i)
		}
	}
	return part
}

func check(part []uint64, seed uint64) error {
	for i := range part {
		if i%512 < 256 && part[i] != seed*2654435761+uint64(i) {
			return fmt.Errorf("word %d of part %d is %d", i, seed, part[i])
		}
	}
	return nil
}

func main() {
	mib, _ := strconv.Atoi(os.Args[1])
	rounds, _ := strconv.Atoi(os.Args[2])
	parts := make([][]uint64, mib)
	for i := range parts {
		parts[i] = fill(uint64(i))
	}
	fmt.Println("filled")
	for round := 0; round < rounds; round++ {
		var group sync.WaitGroup
		wrong := make(chan error, len(parts))
		for i := range parts {
			group.Add(1)
			go func() {
				defer group.Done()
				if err := check(parts[i], uint64(i)); err != nil {
					wrong <- err
				}
				// Garbage for the collector.
				if i%4 == round%4 {
					parts[i] = fill(uint64(i))
				}
			}()
		}
		group.Wait()
		select {
		case err := <-wrong:
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		default:
		}
		runtime.GC()
	}
	fmt.Println("intact")
}
