package deploy

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/pinboard-go/pinboard"
)

const (
	root      = "../.."
	manifests = root + "/examples/kubernetes"
	// A worker's times by default, as Worker.Serve's comment adds them up.
	drainDeadline = 30 * time.Second
	workerGrace   = drainDeadline + 10*time.Second + 25*time.Second
	// nodeShutdown is what cmd/pinboard takes at most.
	nodeShutdown = 20 * time.Second
)

// objects renders an overlay as kubectl does, and decodes what comes out: an
// unknown field, kind or type of value fails.
func objects(t *testing.T, overlay string) (list []runtime.Object) {
	t.Helper()
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(manifests, overlay))
	require.NoError(t, err)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme, autoscalingv2.AddToScheme,
	} {
		require.NoError(t, add(scheme))
	}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	for _, resource := range rendered.Resources() {
		text, err := resource.AsYAML()
		require.NoError(t, err)
		object, _, err := decoder.Decode(text, nil, nil)
		require.NoError(t, err, "%s", text)
		list = append(list, object)
	}
	return list
}

func find[T runtime.Object](t *testing.T, list []runtime.Object, name string) T {
	t.Helper()
	for _, object := range list {
		if found, ok := object.(T); ok && object.(metav1.Object).GetName() == name {
			return found
		}
	}
	require.FailNow(t, "not in the manifests", "%s", name)
	panic("not reached")
}

// pods returns the templates of all pods.
func pods(list []runtime.Object) map[string]corev1.PodTemplateSpec {
	templates := map[string]corev1.PodTemplateSpec{}
	for _, object := range list {
		switch o := object.(type) {
		case *appsv1.Deployment:
			templates[o.Name] = o.Spec.Template
		case *appsv1.StatefulSet:
			templates[o.Name] = o.Spec.Template
		}
	}
	return templates
}

// environment is what a container gets: values of secrets and config maps are
// looked up, and $(NAME) is replaced.
func environment(t *testing.T, list []runtime.Object, container corev1.Container, podIP string) map[string]string {
	t.Helper()
	env := map[string]string{}
	for _, v := range container.Env {
		switch from := v.ValueFrom; {
		case from == nil:
			env[v.Name] = regexp.MustCompile(`\$\(\w+\)`).ReplaceAllStringFunc(v.Value, func(ref string) string {
				value, ok := env[ref[2:len(ref)-1]]
				require.True(t, ok, "%s is not set before %s", ref, v.Name)
				return value
			})
		case from.SecretKeyRef != nil:
			value, ok := find[*corev1.Secret](t, list, from.SecretKeyRef.Name).StringData[from.SecretKeyRef.Key]
			require.True(t, ok, "%s: no such key of the secret", v.Name)
			env[v.Name] = value
		case from.ConfigMapKeyRef != nil:
			value, ok := find[*corev1.ConfigMap](t, list, from.ConfigMapKeyRef.Name).Data[from.ConfigMapKeyRef.Key]
			require.True(t, ok, "%s: no such key of the config map", v.Name)
			env[v.Name] = value
		case from.FieldRef != nil:
			require.Equal(t, "status.podIP", from.FieldRef.FieldPath)
			env[v.Name] = podIP
		}
	}
	return env
}

// A variable that nobody reads is a typing error, or one that was renamed.
func TestTheNodesVariablesAreGoodAndAllOfThemAreRead(t *testing.T) {
	t.Parallel()
	list := objects(t, "base")
	container := pods(list)["pinboard"].Spec.Containers[0]
	requireNode(t, environment(t, list, container, ""), "REDIS_PASSWORD")
}

// requireNode requires a node's variables to be good, and to be read but for
// those that others are put together from.
func requireNode(t *testing.T, env map[string]string, parts ...string) {
	t.Helper()
	unread := map[string]bool{}
	for name := range env {
		unread[name] = true
	}
	for _, part := range parts {
		delete(unread, part)
	}
	settings, err := pinboard.ReadEnvironment(func(name string) (string, bool) {
		delete(unread, name)
		value, ok := env[name]
		return value, ok
	})
	require.NoError(t, err)
	require.Empty(t, unread)
	require.EqualValues(t, 8080, settings.Port)
	require.Equal(t, []string{"redis:6379"}, settings.Redis.InitAddress)
	require.Equal(t, env["REDIS_PASSWORD"], settings.Redis.Password)
	settings.Options.Store, settings.Redis = pinboard.MemoryStore(), nil
	pb, err := pinboard.New(settings.Options)
	require.NoError(t, err)
	require.NoError(t, pb.Close())
}

// reads returns the names that a program looks up, by its source.
func reads(t *testing.T, patterns ...string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, m := range regexp.MustCompile(`"([A-Z][A-Z_]+)"`).FindAllSubmatch(text, -1) {
				names[string(m[1])] = true
			}
		}
	}
	return names
}

func TestTheWorkersVariablesAreGoodAndAllOfThemAreRead(t *testing.T) {
	known := reads(t, "worker/settings.go", "worker/local.go", "examples/counter/main.go")
	for overlay, podIP := range map[string]string{"base": "10.244.3.7", "ipv6": "fd00:10:244::7"} {
		list := objects(t, overlay)
		container := pods(list)["counter"].Spec.Containers[0]
		env := environment(t, list, container, podIP)
		require.Equal(t, podIP, env["POD_IP"])
		delete(env, "POD_IP")
		for name := range env {
			require.True(t, known[name], "nobody reads %s", name)
		}
		requireWorker(t, env)
		require.Equal(t, ":8000", env["LISTEN"])

		// What it advertises is what its key allows, and on the port it serves.
		node := environment(t, list, pods(list)["pinboard"].Spec.Containers[0], "")
		requireAllowed(t, node, env)
		require.Equal(t, int32(8000), container.Ports[0].ContainerPort)
		service := find[*corev1.Service](t, list, "pinboard")
		require.Equal(t, "http://pinboard:8080", env["PINBOARD_URL"])
		require.Equal(t, int32(8080), service.Spec.Ports[0].Port)
	}
}

// Probes, services, policies and budgets name ports and pods that there are.
func TestPortsAndLabelsMeet(t *testing.T) {
	t.Parallel()
	list := objects(t, "base")
	templates := pods(list)
	require.Len(t, templates, 3)
	matching := func(selector map[string]string) (found []string) {
		for name, pod := range templates {
			if labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
				found = append(found, name)
			}
		}
		return found
	}
	hasPort := func(pod string, port intstr.IntOrString) {
		t.Helper()
		for _, p := range templates[pod].Spec.Containers[0].Ports {
			if p.Name == port.StrVal {
				return
			}
		}
		require.FailNow(t, "no such port", "%s of %s", port.StrVal, pod)
	}
	services := 0
	for _, object := range list {
		switch o := object.(type) {
		case *appsv1.Deployment:
			require.Equal(t, []string{o.Name}, matching(o.Spec.Selector.MatchLabels))
			for _, spread := range o.Spec.Template.Spec.TopologySpreadConstraints {
				require.Equal(t, []string{o.Name}, matching(spread.LabelSelector.MatchLabels))
			}
			require.Zero(t, o.Spec.Strategy.RollingUpdate.MaxUnavailable.IntVal, "the new one first")
		case *corev1.Service:
			services++
			require.Equal(t, []string{o.Name}, matching(o.Spec.Selector))
			hasPort(o.Name, o.Spec.Ports[0].TargetPort)
		case *policyv1.PodDisruptionBudget:
			require.Equal(t, []string{o.Name}, matching(o.Spec.Selector.MatchLabels))
		case *autoscalingv2.HorizontalPodAutoscaler:
			require.NotNil(t, find[*appsv1.Deployment](t, list, o.Spec.ScaleTargetRef.Name))
		case *networkingv1.NetworkPolicy:
			to := matching(o.Spec.PodSelector.MatchLabels)
			require.Len(t, to, 1)
			require.Equal(t, []string{"pinboard"}, matching(o.Spec.Ingress[0].From[0].PodSelector.MatchLabels))
			hasPort(to[0], *o.Spec.Ingress[0].Ports[0].Port)
		}
	}
	require.Equal(t, 2, services, "pinboard's and its Redis'; workers have none")
	for name, pod := range templates {
		container := pod.Spec.Containers[0]
		for _, probe := range []*corev1.Probe{container.ReadinessProbe, container.LivenessProbe} {
			switch {
			case probe == nil:
			case probe.HTTPGet != nil:
				hasPort(name, probe.HTTPGet.Port)
			default:
				hasPort(name, probe.TCPSocket.Port)
			}
		}
	}
}

func TestProbesAskForReadinessAndNeverRestartForIt(t *testing.T) {
	t.Parallel()
	templates := pods(objects(t, "base"))
	node, worker := templates["pinboard"].Spec.Containers[0], templates["counter"].Spec.Containers[0]
	require.Equal(t, "/healthz", node.ReadinessProbe.HTTPGet.Path)
	require.Nil(t, node.LivenessProbe.HTTPGet, "/healthz is 503 while the store is away")
	require.Equal(t, "/_pinned/ready", worker.ReadinessProbe.HTTPGet.Path)
	require.Equal(t, "/_pinned/live", worker.LivenessProbe.HTTPGet.Path)
}

func TestNobodyIsKilledInTheMiddleOfItsShutdown(t *testing.T) {
	t.Parallel()
	templates := pods(objects(t, "base"))
	grace := func(name string) time.Duration {
		return time.Duration(*templates[name].Spec.TerminationGracePeriodSeconds) * time.Second
	}
	preStop := templates["pinboard"].Spec.Containers[0].Lifecycle.PreStop.Sleep.Seconds
	require.Positive(t, preStop)
	require.Greater(t, grace("pinboard"), nodeShutdown+time.Duration(preStop)*time.Second)
	require.Greater(t, grace("counter"), workerGrace)
}

func TestPodsHaveNoPrivileges(t *testing.T) {
	t.Parallel()
	for name, pod := range pods(objects(t, "base")) {
		spec, container := pod.Spec, pod.Spec.Containers[0]
		require.False(t, *spec.AutomountServiceAccountToken, name)
		require.False(t, *spec.EnableServiceLinks, name)
		require.True(t, *spec.SecurityContext.RunAsNonRoot, name)
		require.Positive(t, *spec.SecurityContext.RunAsUser, name)
		require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, spec.SecurityContext.SeccompProfile.Type, name)
		require.True(t, *container.SecurityContext.ReadOnlyRootFilesystem, name)
		require.False(t, *container.SecurityContext.AllowPrivilegeEscalation, name)
		require.Equal(t, []corev1.Capability{"ALL"}, container.SecurityContext.Capabilities.Drop, name)
		require.False(t, container.Resources.Limits.Memory().IsZero(), name)
	}
}

// A field that is misspelt is not left out in silence by these tests.
func TestAnUnknownFieldIsNoticed(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	require.NoError(t, appsv1.AddToScheme(scheme))
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	text, err := os.ReadFile(filepath.Join(manifests, "base", "worker.yaml"))
	require.NoError(t, err)
	first, _, _ := bytes.Cut(text, []byte("\n---\n"))
	_, _, err = decoder.Decode(first, nil, nil)
	require.NoError(t, err)
	wrong := strings.Replace(string(first), "terminationGracePeriodSeconds", "terminationGraceSeconds", 1)
	_, _, err = decoder.Decode([]byte(wrong), nil, nil)
	require.ErrorContains(t, err, "terminationGraceSeconds")
}
