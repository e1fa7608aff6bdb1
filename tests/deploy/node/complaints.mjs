// Prints what the schemas of other projects say of each object in a JSON file: an empty text, or what is wrong with it.
import { readFileSync } from "node:fs";

const PACKAGES = {
  "cert-manager.io": "cert-manager",
  "external-secrets.io": "external-secrets",
  "gateway.networking.k8s.io": "gateway-api",
  "keda.sh": "keda",
  "monitoring.coreos.com": "prometheus-operator",
};

async function complaint(object) {
  const group = object.apiVersion.split("/")[0];
  const kinds = await import(`@kubernetes-models/${PACKAGES[group]}/${object.apiVersion}/${object.kind}`);
  try {
    new kinds[object.kind](object).validate();
    return "";
  } catch (error) {
    return error.message;
  }
}

const objects = JSON.parse(readFileSync(process.argv[2], "utf8"));
console.log(JSON.stringify(await Promise.all(objects.map(complaint))));
