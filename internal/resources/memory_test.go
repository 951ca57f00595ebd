package resources_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/resources"
)

const (
	fs2 = "/sys/fs/cgroup"
	fs1 = "/sys/fs/cgroup/memory"
)

func TestAvailableMemoryInEachLayout(t *testing.T) {
	t.Parallel()
	host := free(8000)
	for name, tc := range map[string]struct {
		want  int64
		trees []tree
	}{
		// Version 2.
		"docker, version 2": {700, []tree{host, in("0::/", mounted2("/", fs2)), group2(fs2, 1000, 300)}},
		"docker, version 2, in the host's namespace": {700, []tree{
			host, in("0::/system.slice/docker-1.scope", mounted2("/system.slice/docker-1.scope", fs2)), group2(fs2, 1000, 300),
		}},
		"kubernetes, version 2, a group of the container's own": {50, []tree{
			host, in("0::/app", mounted2("/", fs2)), group2(fs2, 1000, 950), group2(fs2+"/app", 2000, 10),
		}},
		"kubernetes on the node: the pod is fuller than the container": {60, []tree{
			host, in("0::/kubepods.slice/pod1.slice/a.scope", mounted2("/", fs2)),
			group2(fs2+"/kubepods.slice", 6000, 4000), group2(fs2+"/kubepods.slice/pod1.slice", 500, 440),
			group2(fs2+"/kubepods.slice/pod1.slice/a.scope", 400, 100),
		}},
		"systemd: a slice limits what its service does not": {250, []tree{
			host, in("0::/system.slice/app.service", mounted2("/", fs2)),
			group2(fs2+"/system.slice", 1000, 750), group2(fs2+"/system.slice/app.service", -1, 10),
		}},
		"a limit outside of what is mounted": {900, []tree{
			host, in("0::/a/b", mounted2("/a/b", fs2)), group2(fs2, 1000, 100), group2("/sys/fs", 10, 10),
		}},
		"max everywhere": {8000, []tree{
			host, in("0::/a/b", mounted2("/", fs2)), group2(fs2+"/a", -1, 5), group2(fs2+"/a/b", -1, 5),
		}},
		"the machine has less left than the group": {90, []tree{
			free(90), in("0::/", mounted2("/", fs2)), group2(fs2, 1000, 300),
		}},
		"more used than allowed": {0, []tree{host, in("0::/", mounted2("/", fs2)), group2(fs2, 100, 300)}},
		"memory.high is a limit": {150, []tree{
			host, in("0::/", mounted2("/", fs2)), group2(fs2, 1000, 300), {fs2 + "/memory.high": mb(450)},
		}},
		"memory.high without memory.max": {150, []tree{
			host, in("0::/", mounted2("/", fs2)), group2(fs2, -1, 300), {fs2 + "/memory.high": mb(450)},
		}},
		"the inactive page cache is not used up": {900, []tree{
			host, in("0::/", mounted2("/", fs2)), group2(fs2, 1000, 300), {fs2 + "/memory.stat": "file 1\ninactive_file " + mb(200) + "\n"},
		}},
		"more page cache than usage, read later": {1000, []tree{
			host, in("0::/", mounted2("/", fs2)), group2(fs2, 1000, 300), {fs2 + "/memory.stat": "inactive_file " + mb(301) + "\n"},
		}},
		"rounded down": {699, []tree{
			host, in("0::/", mounted2("/", fs2)), group2(fs2, 1000, 300), {fs2 + "/memory.current": "314572801"},
		}},

		// Version 1.
		"docker, version 1: the group's path does not exist in the container": {600, []tree{
			host, in("4:memory:/docker/1", mounted1("memory", "/docker/1", fs1)), group1(fs1, 1000, 400),
		}},
		"docker, version 1, with a namespace": {600, []tree{
			host, in("4:memory:/", mounted1("memory", "/", fs1)), group1(fs1, 1000, 400),
		}},
		"version 1, a mount that claims to be the root": {600, []tree{
			host, in("4:memory:/docker/1", mounted1("memory", "/", fs1)), group1(fs1, 1000, 400),
		}},
		"version 1, nested": {100, []tree{
			host, in("4:cpu,memory:/pods/1", mounted1("cpu,memory", "/", fs1)),
			group1(fs1, -1, 7000), group1(fs1+"/pods", 5000, 4900), group1(fs1+"/pods/1", 1000, 400),
		}},
		"version 1, a parent that does not count its children": {600, []tree{
			host, in("4:memory:/a/b/c", mounted1("memory", "/", fs1)),
			group1(fs1+"/a", 5, 5), group1(fs1+"/a/b", 4, 4), group1(fs1+"/a/b/c", 1000, 400), {fs1 + "/a/b/memory.use_hierarchy": "0\n"},
		}},
		"version 1, the own group does not count children": {100, []tree{
			host, in("4:memory:/a/b", mounted1("memory", "/", fs1)),
			group1(fs1+"/a", 5000, 4900), group1(fs1+"/a/b", 1000, 400), {fs1 + "/a/b/memory.use_hierarchy": "0\n"},
		}},
		"version 1, unlimited": {8000, []tree{host, in("4:memory:/", mounted1("memory", "/", fs1)), group1(fs1, -1, 400)}},
		"version 1, unlimited with pages of 64 KiB": {1 << 24, []tree{
			free(1 << 24), in("4:memory:/", mounted1("memory", "/", fs1)), group1(fs1, -1, 400),
			{fs1 + "/memory.limit_in_bytes": "9223372036854710272\n"},
		}},
		"version 1, inactive page cache of the children as well": {900, []tree{
			host, in("4:memory:/", mounted1("memory", "/", fs1)), group1(fs1, 1000, 300),
			{fs1 + "/memory.stat": "inactive_file 5\ntotal_inactive_file " + mb(200) + "\n"},
		}},

		// Both.
		"hybrid, the controller in version 1": {600, []tree{
			host, in("9:name=systemd:/u\n4:memory:/m\n3:cpu:/c\n0::/u",
				mounted2("/", fs2+"/unified"), mounted1("cpu", "/", fs2+"/cpu"), mounted1("memory", "/", fs1)),
			group1(fs1+"/m", 1000, 400), group1(fs2+"/cpu", 5, 5), group1(fs1+"/c", 5, 5), {fs2 + "/unified/u/cgroup.procs": "42\n"},
		}},
		"hybrid, the controller in version 2": {600, []tree{
			host, in("1:name=systemd:/u\n0::/u", mounted2("/", fs2+"/unified"), mounted1("name=systemd", "/", fs2+"/systemd")),
			group2(fs2+"/unified/u", 1000, 400),
		}},

		// Namespaces and mounts that do not fit each other.
		"a mount from outside of the namespace": {300, []tree{
			host, in("0::/", mounted2("/../..", fs2)), group2(fs2, 500, 200),
		}},
		"a mount from outside of the namespace, by names that are known": {80, []tree{
			host, in("0::/../other/x", mounted2("/..", fs2)), group2(fs2+"/other", 100, 20), group2(fs2+"/other/x", 500, 200),
		}},
		"moved out of the namespace": {300, []tree{
			host, in("0::/../other", mounted2("/", fs2)), group2(fs2, 500, 200), group2(fs2+"/other", 1, 1),
		}},
		"above the namespace": {300, []tree{host, in("0::/../..", mounted2("/", fs2)), group2(fs2, 500, 200)}},
		"no part of a name":   {300, []tree{host, in("0::/ab", mounted2("/a", fs2)), group2(fs2, 500, 200), group2(fs2+"/b", 1, 1)}},
		"mounts of other containers": {300, []tree{
			host, in("0::/me", mounted2("/you", "/run/you"+fs2), mounted2("/", fs2)),
			group2("/run/you"+fs2, 1, 1), group2(fs2+"/me", 500, 200),
		}},
		"two mounts that both show the group": {40, []tree{
			host, in("0::/a/b", mounted2("/a/b", "/x"), mounted2("/", fs2)),
			group2("/x", 500, 200), group2(fs2+"/a", 50, 10),
		}},
		"a mount over an older one": {300, []tree{
			host, in("0::/a", mounted2("/", fs2), mounted2("/a", fs2)), group2(fs2, 500, 200), group2(fs2+"/a", 1, 1),
		}},
		"a mount hidden by another file system": {8000, []tree{
			host, in("0::/", mounted2("/", fs2), "40 23 0:40 / "+fs2+" rw - tmpfs tmpfs rw"), group2(fs2, 500, 200),
		}},
		"names with a space": {300, []tree{
			host, in("0::/a b/c", mounted2(`/a\040b`, `/my\040groups`)), group2("/my groups/c", 500, 200),
		}},
		"no cgroup mount": {8000, []tree{host, in("0::/a"), group2(fs2, 500, 200)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, resources.AvailableMB(write(t, tc.trees...)))
		})
	}
}

func TestWhatCannotBeReadIsLeftOut(t *testing.T) {
	t.Parallel()
	host := free(8000)
	nested := []tree{
		host, in("0::/a/b", mounted2("/", fs2)), group2(fs2+"/a", 1000, 300), group2(fs2+"/a/b", 500, 200),
	}
	for name, tc := range map[string]struct {
		want  int64
		trees []tree
	}{
		"all there":                   {300, nested},
		"a malformed limit":           {700, append(nested, tree{fs2 + "/a/b/memory.max": "1e3"})},
		"an empty limit":              {700, append(nested, tree{fs2 + "/a/b/memory.max": ""})},
		"a negative limit":            {700, append(nested, tree{fs2 + "/a/b/memory.max": "-1"})},
		"a malformed usage":           {700, append(nested, tree{fs2 + "/a/b/memory.current": "much"})},
		"a malformed page cache":      {300, append(nested, tree{fs2 + "/a/b/memory.stat": "inactive_file x\n"})},
		"an empty memory.stat":        {300, append(nested, tree{fs2 + "/a/b/memory.stat": ""})},
		"a malformed meminfo":         {300, append(nested, tree{"proc/meminfo": "MemAvailable: 5 furlongs\n"})},
		"a meminfo without the line":  {300, append(nested, tree{"proc/meminfo": "MemFree: 5 kB\n"})},
		"malformed groups":            {40, append(nested, tree{"proc/42/cgroup": "what"}, group2(fs2, 50, 10))},
		"malformed mounts, version 2": {300, append(nested, tree{"proc/42/mountinfo": "what"})},
		"malformed mounts, version 1": {600, []tree{
			host, in("4:memory:/m"), {"proc/42/mountinfo": "what"}, group1(fs1+"/m", 1000, 400),
		}},
		"nothing but the machine":             {8000, []tree{host}},
		"nothing but a group":                 {300, []tree{group2(fs2, 500, 200)}},
		"nothing at all":                      {resources.UnknownMB, nil},
		"nothing but a group without a limit": {resources.UnknownMB, []tree{group2(fs2, -1, 200), group1(fs1, -1, 200)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, resources.AvailableMB(write(t, tc.trees...)))
		})
	}
}

func TestWithoutProcTheUsualPlacesAreRead(t *testing.T) {
	t.Parallel()
	for want, group := range map[int64]tree{300: group2(fs2, 500, 200), 600: group1(fs1, 1000, 400), resources.UnknownMB: nil} {
		root := write(t, group)
		require.NoError(t, os.RemoveAll(filepath.Join(root, "proc")))
		require.Equal(t, want, resources.AvailableMB(root))
	}
	require.EqualValues(t, resources.UnknownMB, resources.AvailableMB(filepath.Join(t.TempDir(), "missing")))
}

// A directory in place of a file can't be read by root either.
func TestAnUnreadableFileIsLeftOut(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int64{
		fs2 + "/a/memory.max": 900, fs2 + "/a/memory.current": 900, fs2 + "/a/memory.stat": 100, fs2 + "/a/memory.high": 100,
		"proc/meminfo": 100, "proc/42/cgroup": 900, "proc/42/mountinfo": 100,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := write(t, free(8000), in("0::/a", mounted2("/", fs2)), group2(fs2+"/a", 300, 200), group2(fs2, 1000, 100))
			file := filepath.Join(root, name)
			require.NoError(t, os.Remove(file))
			require.NoError(t, os.Mkdir(file, 0o755))
			require.Equal(t, want, resources.AvailableMB(root))
		})
	}
}
