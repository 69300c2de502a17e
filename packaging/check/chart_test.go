package check

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

// render returns the objects that Helm would install, each of its kind's type.
func render(t *testing.T, values map[string]any) ([]runtime.Object, error) {
	t.Helper()
	path := os.Getenv("SIMURGH_CHART")
	if path == "" {
		path = "../helm/simurgh"
	}
	chart, err := loader.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	options := chartutil.ReleaseOptions{Name: "simurgh", Namespace: "chat", IsInstall: true}
	// This step checks values.schema.json, too.
	all, err := chartutil.ToRenderValues(chart, values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	if err := monitoring.AddToScheme(scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var objects []runtime.Object
	for name, text := range files {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for _, manifest := range releaseutil.SplitManifests(text) {
			object, _, err := strict.Decode([]byte(manifest), nil, nil)
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, manifest)
				continue
			}
			objects = append(objects, object)
		}
	}
	return objects, nil
}

func only[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	var found []T
	for _, object := range objects {
		if one, ok := object.(T); ok {
			found = append(found, one)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T, not 1", len(found), *new(T))
	}
	return found[0]
}

func kindsOf(objects []runtime.Object) string {
	var kinds []string
	for _, object := range objects {
		kinds = append(kinds, object.GetObjectKind().GroupVersionKind().Kind)
	}
	slices.Sort(kinds)
	return strings.Join(kinds, " ")
}

// Kinds of objects for the values of each file in testdata, and for the defaults.
var kinds = map[string]string{
	"": "ConfigMap Deployment NetworkPolicy PodDisruptionBudget Service Service",
	"cluster.yaml": "ConfigMap Deployment HorizontalPodAutoscaler NetworkPolicy " +
		"PodDisruptionBudget Service Service ServiceMonitor",
	"exposed.yaml": "ConfigMap Deployment Ingress NetworkPolicy Service Service",
	"single.yaml": "ConfigMap Deployment PersistentVolumeClaim PodDisruptionBudget " +
		"Service Service",
}

func TestChartRendersObjectsThatKubernetesAccepts(t *testing.T) {
	for file, want := range kinds {
		t.Run("values of "+file, func(t *testing.T) {
			objects, err := render(t, read(t, file))
			if err != nil {
				t.Fatal(err)
			}
			if got := kindsOf(objects); got != want {
				t.Errorf("kinds are %s, not %s", got, want)
			}
			checkPod(t, only[*apps.Deployment](t, objects))
			checkSettings(t, only[*core.ConfigMap](t, objects))
			for _, object := range objects {
				if policy, ok := object.(*networking.NetworkPolicy); ok {
					checkPolicy(t, policy)
				}
			}
		})
	}
}

func read(t *testing.T, file string) map[string]any {
	t.Helper()
	if file == "" {
		return map[string]any{}
	}
	values, err := chartutil.ReadValuesFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return values
}

func checkPod(t *testing.T, deployment *apps.Deployment) {
	pod := deployment.Spec.Template.Spec
	container := pod.Containers[0]
	var drain int64
	for _, argument := range container.Args {
		fmt.Sscanf(argument, "--drain-time=%ds", &drain)
	}
	grace, sleep := *pod.TerminationGracePeriodSeconds, container.Lifecycle.PreStop.Sleep.Seconds
	if drain == 0 || grace < drain+sleep+5 {
		t.Errorf("the pod has %d s to end, of which it sleeps %d and drains %d", grace, sleep, drain)
	}
	security := container.SecurityContext
	if !*security.ReadOnlyRootFilesystem || *security.AllowPrivilegeEscalation ||
		!*pod.SecurityContext.RunAsNonRoot || security.Capabilities.Drop[0] != "ALL" {
		t.Error("the container may write to its root, or has rights")
	}
	// A Service "simurgh" would add the variable SIMURGH_PORT, and the server would refuse it.
	if *pod.EnableServiceLinks || *pod.AutomountServiceAccountToken {
		t.Error("the pod gets variables of Services, or a token")
	}
	for _, probe := range []*core.Probe{container.ReadinessProbe, container.LivenessProbe} {
		if probe.HTTPGet.Path != "/healthz" || probe.HTTPGet.Port.StrVal != "http" {
			t.Errorf("probe %v", probe)
		}
	}
	rolling := deployment.Spec.Strategy.RollingUpdate
	keepsState := len(pod.Volumes) == 2
	if keepsState != (deployment.Spec.Strategy.Type == apps.RecreateDeploymentStrategyType) ||
		!keepsState && (rolling.MaxSurge.IntVal != 1 || rolling.MaxUnavailable.IntVal != 0) {
		t.Errorf("strategy %v", deployment.Spec.Strategy)
	}
}

func checkPolicy(t *testing.T, policy *networking.NetworkPolicy) {
	for _, rule := range policy.Spec.Ingress {
		isForAll := len(rule.From) == 0
		if isForAll != (rule.Ports[0].Port.StrVal == "http") {
			t.Errorf("port %v is open to %v", rule.Ports[0].Port, rule.From)
		}
	}
}

// checkSettings lets the server read its file.
func checkSettings(t *testing.T, settings *core.ConfigMap) {
	binary := os.Getenv("SIMURGH_BINARY")
	if binary == "" {
		return
	}
	file := filepath.Join(t.TempDir(), "simurgh.toml")
	if err := os.WriteFile(file, []byte(settings.Data["simurgh.toml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(binary, "config", "--check", file)
	secret := strings.Repeat("s", 64)
	command.Env = []string{"NATS_PASSWORD=secret", "CLUSTER_SECRET=" + secret, "SIMURGH_API_TOKEN=" + secret}
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v: %s\n%s", err, output, settings.Data["simurgh.toml"])
	}
}

func TestChartRefusesValuesThatCannotWork(t *testing.T) {
	cases := map[string]map[string]any{
		"need nats.servers":           {"replicas": 3},
		"needs existingSecret":        {"nats": map[string]any{"servers": []any{"nats://nats:4222"}}},
		"persistence is for a single": {"nats": map[string]any{"servers": []any{"nats://nats:4222"}}, "existingSecret": "s", "persistence": map[string]any{"enabled": true}},
		"needs ingress.host":          {"ingress": map[string]any{"enabled": true}},
		"replica":                     {"replica": 3},
		"preStopSeconds":              {"preStopSeconds": 0},
	}
	for why, values := range cases {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v: %v, not %q", values, err, why)
		}
	}
}

func TestStrictDecodingRefusesUnknownFields(t *testing.T) {
	values := map[string]any{"affinity": map[string]any{"nodeAfinity": map[string]any{}}}
	chart, err := loader.Load("../helm/simurgh")
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "simurgh"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		t.Fatal(err)
	}
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	text := files["simurgh/templates/deployment.yaml"]
	if _, _, err := strict.Decode([]byte(text), nil, nil); err == nil || !strings.Contains(err.Error(), "nodeAfinity") {
		t.Errorf("%v", err)
	}
}
