package resources_test

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/resources"
)

// number returns the only group of a pattern in a file, as a number.
func number(file, pattern string) (n float64, ok bool) {
	content, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	match := regexp.MustCompile(`(?m)` + pattern).FindSubmatch(content)
	if match == nil {
		return 0, false
	}
	n, err = strconv.ParseFloat(string(match[1]), 64)
	return n, err == nil
}

// expectedMB is a second opinion for the machine that the test runs on: it
// takes the groups' names and the usual mount points and knows no mount table.
func expectedMB() float64 {
	least := math.Inf(1)
	if kb, ok := number("/proc/meminfo", `^MemAvailable: +(\d+) kB$`); ok {
		least = kb / 1024
	}
	groups, _ := os.ReadFile("/proc/self/cgroup")
	for _, v := range []struct{ line, mount, limit, high, usage, cache string }{
		{`(?m)^\d+:(?:.*,)?memory(?:,.*)?:(/.*)$`, fs1, "memory.limit_in_bytes", "none", "memory.usage_in_bytes", "total_inactive_file"},
		{`(?m)^0::(/.*)$`, fs2, "memory.max", "memory.high", "memory.current", "inactive_file"},
	} {
		match := regexp.MustCompile(v.line).FindSubmatch(groups)
		if match == nil {
			continue
		}
		for name := string(bytes.TrimSpace(match[1])); ; name = filepath.Dir(name) {
			dir := filepath.Join(v.mount, name)
			usage, told := number(filepath.Join(dir, v.usage), `^(\d+)$`)
			cache, _ := number(filepath.Join(dir, "memory.stat"), `^`+v.cache+` (\d+)$`)
			for _, file := range []string{v.limit, v.high} {
				if limit, ok := number(filepath.Join(dir, file), `^(\d+)$`); ok && told && limit < 1e18 {
					least = min(least, max(0, limit-max(0, usage-cache))/(1<<20))
				}
			}
			if name == "/" {
				break
			}
		}
	}
	if math.IsInf(least, 1) {
		return resources.UnknownMB
	}
	return least
}

// The machine may be busy between two readings, but not between all of them.
func TestTheMachinesMemoryIsWhatItsFilesSay(t *testing.T) {
	t.Parallel()
	require.Eventually(t, func() bool {
		want := expectedMB()
		return math.Abs(float64(resources.AvailableMB("/"))-want) <= 1+want/200
	}, 30*time.Second, time.Millisecond)
}

func TestTheMachinesFiguresOfThisProcess(t *testing.T) {
	t.Parallel()
	p := resources.NewProcess("/")
	usage, ok := p.Read(0)
	content, err := os.ReadFile("/proc/self/statm")
	require.Equal(t, err == nil, ok)
	if !ok {
		return
	}
	require.Zero(t, usage.CPUPercent)
	pages, err := strconv.ParseFloat(string(bytes.Fields(content)[1]), 64)
	require.NoError(t, err)
	require.InEpsilon(t, pages*float64(os.Getpagesize()), usage.ResidentBytes, 0.5)
	// Works until the kernel has counted some of it; go test ends it otherwise.
	for now := time.Second; usage.CPUPercent == 0; now += time.Second {
		for range 1_000_000 {
			pages = math.Sqrt(pages + 1)
		}
		usage, ok = p.Read(now)
		require.True(t, ok)
	}
}

func BenchmarkAvailableMB(b *testing.B) {
	for b.Loop() {
		resources.AvailableMB("/")
	}
}
